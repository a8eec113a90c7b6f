"""Our own sources by what they hold: a checkout changes without its version changing.

Every start asks, and reading them all takes a while, so what they hold is kept in the cache under what the file system
tells of them: names, sizes, times.
"""

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from functools import cache

from precast.cache.keys import content_key
from precast.cache.store import open_store
from precast.options import as_options

KIND = "sources"

_ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_SUFFIXES = (".py", ".h", ".cpp")


def own_sources(*folders: str) -> str:
    """A hash of the package's files, or of those in some of its folders."""
    known = _digests()
    return " ".join(known[folder] for folder in folders or sorted(known))


@cache
def _digests() -> Mapping[str, str]:
    """The hash of each folder's files; the empty name stands for the files beside the folders."""
    files = sorted(_files(_ROOT), key=lambda entry: entry.path)
    facts = [(entry.path, entry.stat()) for entry in files]
    key = content_key(f"{path} {stat.st_size} {stat.st_mtime_ns} {stat.st_ctime_ns}" for path, stat in facts)
    store = open_store(as_options(None))
    found = store.get(KIND, key)
    if found is None:
        digests = _digests_of(path for path, _ in facts)
        store.put(KIND, key, json.dumps(digests).encode())
        return digests
    known: Mapping[str, str] = json.loads(found)
    return known


def _digests_of(paths: Iterator[str]) -> dict[str, str]:
    found: dict[str, hashlib._Hash] = {}
    for path in paths:
        name = path.removeprefix(_ROOT + os.sep)
        folder, separator, _ = name.partition(os.sep)
        digest = found.setdefault(folder if separator else "", hashlib.sha256())
        with open(path, "rb", buffering=0) as file:
            content = file.read()
        digest.update(f"{name} {len(content)} ".encode())
        digest.update(content)
    return {folder: digest.hexdigest() for folder, digest in found.items()}


def _files(folder: str) -> Iterator["os.DirEntry[str]"]:
    # `os.scandir`, not `pathlib`: a start waits for this.
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.endswith(_SUFFIXES):
                yield entry
            elif entry.is_dir(follow_symlinks=False) and entry.name != "__pycache__":
                yield from _files(entry.path)
