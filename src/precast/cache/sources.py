"""Our own sources by what they hold: a checkout changes without its version changing."""

import hashlib
import os
from collections.abc import Iterator, Mapping
from functools import cache

_ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_SUFFIXES = (".py", ".h", ".cpp")


def own_sources(*folders: str) -> str:
    """A hash of the package's files, or of those in some of its folders."""
    known = _digests()
    return " ".join(known[folder] for folder in folders or sorted(known))


@cache
def _digests() -> Mapping[str, str]:
    """The hash of each folder's files; the empty name stands for the files beside the folders."""
    found: dict[str, hashlib._Hash] = {}
    for path in sorted(_files(_ROOT)):
        name = path.removeprefix(_ROOT + os.sep)
        folder, separator, _ = name.partition(os.sep)
        digest = found.setdefault(folder if separator else "", hashlib.sha256())
        with open(path, "rb", buffering=0) as file:
            content = file.read()
        digest.update(f"{name} {len(content)} ".encode())
        digest.update(content)
    return {folder: digest.hexdigest() for folder, digest in found.items()}


def _files(folder: str) -> Iterator[str]:
    # `os.scandir`, not `pathlib`: a start waits for this.
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.endswith(_SUFFIXES):
                yield entry.path
            elif entry.is_dir(follow_symlinks=False) and entry.name != "__pycache__":
                yield from _files(entry.path)
