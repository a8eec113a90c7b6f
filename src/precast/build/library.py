"""Sources → one shared library: each unit compiled on its own and kept, then linked."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from os import cpu_count
from pathlib import Path

from precast.build.compiler import COMPILE_FLAGS, LINK_FLAGS, Compiler, find_compiler, run_compiler
from precast.build.onednn import OneDnn, find_onednn
from precast.build.progress import Progress, showing_progress
from precast.cache import Store, content_key, processor_identity
from precast.errors import BuildError
from precast.ir.loops.sources import Sources, Unit

OBJECTS, LIBRARIES = "objects", "libraries"
"""Kinds of the store's entries."""


@dataclass(frozen=True)
class Library:
    """A built shared library, and which others it needs to find loaded: file names such as ``libdnnl.so.3``.

    The store may evict the file: build and load it inside ``store.held()``.
    """

    key: str
    path: Path
    needs: tuple[str, ...] = ()


def build(
    sources: Sources,
    *,
    store: Store,
    compiler: str | None = None,
    extra_flags: Sequence[str] = (),
    onednn_prefix: Path | None = None,
) -> Library:
    """Build `sources`, or find them built; the compiler runs only for what is new."""
    recipe = _Recipe(sources, find_compiler(compiler), tuple(extra_flags), _onednn(sources, onednn_prefix))
    path = store.file(LIBRARIES, recipe.key, lambda target: recipe.link(target, store), suffix=".so")
    return Library(recipe.key, path, recipe.needs)


def build_file(
    sources: Sources,
    target: Path,
    *,
    store: Store,
    compiler: str | None = None,
    extra_flags: Sequence[str] = (),
    data: Mapping[str, Path] | None = None,
) -> Library:
    """Build `sources` to `target`, which appears complete or not at all; only the compiled units are kept in the store.

    The bytes of the files in `data` are linked in as read-only memory that begins at a page, under these symbols.
    """
    recipe = _Recipe(sources, find_compiler(compiler), tuple(extra_flags), _onednn(sources, None))
    with tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent) as scratch:
        linked = Path(scratch) / target.name
        objects = [_data_object(name, path, Path(scratch), recipe.compiler) for name, path in (data or {}).items()]
        recipe.link(linked, store, objects)
        os.replace(linked, target)
    return Library(recipe.key, target, recipe.needs)


def _onednn(sources: Sources, prefix: Path | None) -> OneDnn | None:
    return find_onednn(prefix) if sources.needs_onednn else None


class _Recipe:
    """How one library is made, and the keys of what it is made of."""

    def __init__(self, sources: Sources, compiler: Compiler, extra_flags: tuple[str, ...], onednn: OneDnn | None):
        self.sources, self.compiler, self.onednn = sources, compiler, onednn
        # The library is linked without a path to oneDNN: whoever loads the model has loaded it before.
        self.link_flags = [*LINK_FLAGS, *extra_flags, *([str(onednn.library)] if onednn else [])]
        self.flags = [*COMPILE_FLAGS, *extra_flags]
        machine = [compiler.identity, processor_identity(), *self.flags, onednn.identity if onednn else ""]
        headers = [part for header in sources.headers for part in (header.name, header.text)]
        self.keys = {unit: content_key([*machine, *headers, unit.name, unit.text]) for unit in sources.units}
        self.key = content_key([*self.keys.values(), *self.link_flags])
        self.needs = (onednn.library.name,) if onednn else ()

    def link(self, target: Path, store: Store, further: Sequence[Path] = ()) -> None:
        with showing_progress("Building native code", total=len(self.sources.units) + 1) as progress:
            objects = _objects(self.sources, self.keys, self.compiler, self.flags, self.onednn, store, progress)
            run_compiler(self.compiler, [*objects, *further, *self.link_flags, "-o", target], what="to link the model")


def _data_object(symbol: str, path: Path, folder: Path, compiler: Compiler) -> Path:
    """A file's bytes as an object file, in a section that the linker may put any distance away from code."""
    source, made = folder / f"{symbol}.s", folder / f"{symbol}.o"
    lines = [
        '.section .lrodata,"al",@progbits', ".balign 4096", f".globl {symbol}", f".hidden {symbol}", f"{symbol}:",
        f".incbin {json.dumps(str(path.resolve()))}", '.section .note.GNU-stack,"",@progbits',
    ]  # fmt: skip
    source.write_text("\n".join(lines) + "\n")
    run_compiler(compiler, ["-c", source, "-o", made], what="to put data into a library")
    return made


def find_library(key: str, needs: tuple[str, ...], *, store: Store) -> Library:
    """A library that was built before; a ``BuildError`` if it is there no more."""

    def refuse(_: Path) -> None:
        raise BuildError(
            "a stored program refers to a library that is not in the cache",
            why="the cache dropped it to make room",
            fix="nothing need be done: it is built again",
        )

    return Library(key, store.file(LIBRARIES, key, refuse, suffix=".so"), needs)


def _objects(
    sources: Sources,
    keys: dict[Unit, str],
    compiler: Compiler,
    flags: list[str],
    onednn: OneDnn | None,
    store: Store,
    progress: Progress,
) -> list[Path]:
    with tempfile.TemporaryDirectory(prefix="precast-") as scratch:
        folder = Path(scratch)
        for unit in (*sources.headers, *sources.units):
            (folder / unit.name).write_text(unit.text)
        includes: list[str | Path] = ["-I", folder]
        if onednn:
            includes += ["-I", onednn.include]

        def compile_unit(unit: Unit) -> Path:
            def make(target: Path) -> None:
                arguments = [*flags, *includes, "-c", folder / unit.name, "-o", target]
                run_compiler(compiler, arguments, what=f"the generated {unit.name}")

            made = store.file(OBJECTS, keys[unit], make, suffix=".o")
            progress.advance()
            return made

        with ThreadPoolExecutor(max_workers=cpu_count() or 1) as pool:
            return list(pool.map(compile_unit, sources.units))
