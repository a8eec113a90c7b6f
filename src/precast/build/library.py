"""Sources → one shared library: each unit compiled on its own and kept, then linked."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
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
    found = find_compiler(compiler)
    onednn = find_onednn(onednn_prefix) if sources.needs_onednn else None
    # The library is linked without a path to oneDNN: whoever loads the model has loaded it before.
    link_flags = [*LINK_FLAGS, *extra_flags, *([str(onednn.library)] if onednn else [])]
    flags = [*COMPILE_FLAGS, *extra_flags]
    machine = [found.identity, processor_identity(), *flags, onednn.identity if onednn else ""]
    headers = [part for header in sources.headers for part in (header.name, header.text)]
    keys = {unit: content_key([*machine, *headers, unit.name, unit.text]) for unit in sources.units}
    library_key = content_key([*keys.values(), *link_flags])

    def link(target: Path) -> None:
        with showing_progress("Building native code", total=len(sources.units) + 1) as progress:
            objects = _objects(sources, keys, found, flags, onednn, store, progress)
            run_compiler(found, [*objects, *link_flags, "-o", target], what="to link the model")

    path = store.file(LIBRARIES, library_key, link, suffix=".so")
    return Library(library_key, path, (onednn.library.name,) if onednn else ())


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
