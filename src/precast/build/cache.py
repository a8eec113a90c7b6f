"""A folder of built files by content key. A file is there whole or not at all."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path


def content_key(parts: Iterable[str]) -> str:
    """A name for exactly these parts in this order."""
    digest = hashlib.sha256()
    for part in parts:
        encoded = part.encode()
        digest.update(len(encoded).to_bytes(8, "little"))
        digest.update(encoded)
    return digest.hexdigest()


def cached(directory: Path, name: str, make: Callable[[Path], None]) -> Path:
    """The file `name`; if it is not there yet, `make` writes it under another name, and it is renamed when complete.

    Two processes may build the same file at once: both succeed, and the second replaces equal bytes by equal bytes.
    """
    final = directory / name
    if final.exists():
        return final
    directory.mkdir(parents=True, exist_ok=True)
    handle, partial = tempfile.mkstemp(prefix=".partial-", dir=directory)
    os.close(handle)
    try:
        make(Path(partial))
        with open(partial, "rb") as written:
            os.fsync(written.fileno())
        os.chmod(partial, 0o644)
        os.replace(partial, final)
    finally:
        Path(partial).unlink(missing_ok=True)
    return final
