"""Names for results: a hash of everything that decides them.

What of this machine decides which code suits it.

Our own sources by what they hold: a checkout changes without its version changing.
"""

import hashlib
import os
import platform
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path


def content_key(parts: Iterable[str | bytes]) -> str:
    """A name for exactly these parts in this order.

    >>> content_key(["ab", "c"]) == content_key(["a", "bc"])
    False
    """
    digest = hashlib.sha256()
    for part in parts:
        encoded = part.encode() if isinstance(part, str) else part
        # With its length before it, no part can pass for the end of one and the start of the next.
        digest.update(f"{'text' if isinstance(part, str) else 'data'} {len(encoded)} ".encode())
        digest.update(encoded)
    return digest.hexdigest()


_TELLING = ("vendor_id", "cpu family", "model", "model name", "flags", "CPU implementer", "CPU part", "Features")


@cache
def processor_identity() -> str:
    """The processor's model and instructions: equal texts mean that code tuned for one runs as well on the other."""
    facts = Path("/proc/cpuinfo")
    return telling_lines(facts.read_text()) if facts.exists() else f"{platform.machine()} {platform.processor()}"


def telling_lines(facts: str) -> str:
    """What ``/proc/cpuinfo`` says of kinds of processors, leaving out how many there are and how fast they now run."""
    lines = (line for line in facts.splitlines() if line.partition(":")[0].strip() in _TELLING)
    return "\n".join(dict.fromkeys(lines))


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
