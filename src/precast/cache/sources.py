"""Hashes of our own sources: a checkout changes without its version changing.

Before: the modules that produce some result
After:  a hash of everything that affects the result: the closure of their imports, and C++ files beside it
"""

import hashlib
import os
import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import NamedTuple

_ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_SUFFIXES = (".py", ".h", ".cpp")
# Found by regular expressions: warm starts wait for this, and a parser would take a hundred times as long.
_FROM = re.compile(rb"from (precast[\w.]*) import (\([^)]*\)|[^\n]*)")
_IMPORT = re.compile(rb"import (precast[\w.]*)")
_HOME = re.compile(rb'"(\w+)": "(precast[\w.]*)"')
_NAME = re.compile(rb"\w+")
_ONLY_FOR_TYPES = re.compile(rb"if TYPE_CHECKING:\n(?:[ \t]+[^\n]*\n|\n)*")


@cache
def own_sources(*modules: str) -> str:
    """A hash of the package's files; with ``modules``, of their files and of everything they import, transitively.

    Imports inside functions count, those for type checkers do not. C++ headers and sources belong to the package in
    whose folder they are.
    """
    members = import_closure(*modules)
    files = [file for file in _files() if file.module in members or not modules]
    return hashlib.sha256("\n".join(f"{file.name} {file.digest}" for file in files).encode()).hexdigest()


def import_closure(*modules: str) -> set[str]:
    """The modules of Precast that these import, transitively, including themselves."""
    texts = {file.module: file.text for file in _files() if file.name.endswith(".py")}
    assert texts.keys() >= set(modules), f"there is no module {set(modules) - texts.keys()}"
    homes = {file.module: dict(_HOME.findall(file.text)) for file in _files() if file.name.endswith("__init__.py")}
    found, waiting = set[str](), list(modules)
    while waiting:
        module = waiting.pop()
        if module in texts and module not in found:
            found.add(module)
            # Importing a module imports its parent packages.
            waiting += [module.rpartition(".")[0], *_imported(texts[module], homes)]
    return found


def _imported(text: bytes, homes: Mapping[str, Mapping[bytes, bytes]]) -> Iterator[str]:
    """The imports of a module; ``homes`` maps each package to the modules that define its lazy names."""
    text = _ONLY_FOR_TYPES.sub(b"", text)
    if b"import precast" in text:
        yield from (module.decode() for module in _IMPORT.findall(text))
    for module, names in _FROM.findall(text):
        source = module.decode()
        yield source
        if source in homes:
            yield from (homes[source].get(name, module + b"." + name).decode() for name in _NAME.findall(names))


class _File(NamedTuple):
    """A file of the package; ``module`` is its own module, or the package that it belongs to."""

    name: str
    module: str
    text: bytes
    digest: str


@cache
def _files() -> tuple[_File, ...]:
    """All files of the package, in order."""
    return tuple(sorted(_read(_ROOT, "", "precast")))


def _read(folder: str, prefix: str, package: str) -> Iterator[_File]:
    # `os.scandir`, not `pathlib`, for speed: warm starts wait for this.
    with os.scandir(folder) as listing:
        entries = {entry.name: entry for entry in listing}
    if prefix and "__init__.py" in entries:
        package = "precast." + prefix[:-1].replace("/", ".")
    for name, entry in entries.items():
        if name.endswith(_SUFFIXES):
            with open(entry.path, "rb", buffering=0) as file:
                text = file.read()
            is_own = name.endswith(".py") and name != "__init__.py"
            module = f"{package}.{name.removesuffix('.py')}" if is_own else package
            yield _File(prefix + name, module, text, hashlib.sha256(text).hexdigest())
        elif name != "__pycache__" and entry.is_dir(follow_symlinks=False):
            yield from _read(entry.path, f"{prefix}{name}/", package)
