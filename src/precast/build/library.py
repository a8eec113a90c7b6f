"""Sources → one shared library: each unit compiled on its own and kept, then linked."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from os import cpu_count
from pathlib import Path

from precast.build.cache import cached, content_key
from precast.build.compiler import COMPILE_FLAGS, LINK_FLAGS, Compiler, cpu_identity, find_compiler, run_compiler
from precast.build.onednn import OneDnn, find_onednn
from precast.ir.loops.sources import Sources, Unit


@dataclass(frozen=True)
class Library:
    """A built shared library, and which others it needs to find loaded: file names such as ``libdnnl.so.3``."""

    path: Path
    needs: tuple[str, ...] = ()


def build(
    sources: Sources,
    *,
    cache_directory: Path,
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
    machine = [found.identity, cpu_identity(), *flags, onednn.identity if onednn else ""]
    headers = [part for header in sources.headers for part in (header.name, header.text)]
    keys = {unit: content_key([*machine, *headers, unit.name, unit.text]) for unit in sources.units}
    library_key = content_key([*keys.values(), *link_flags])

    def link(target: Path) -> None:
        objects = _objects(sources, keys, found, flags, onednn, cache_directory / "objects")
        run_compiler(found, [*objects, *link_flags, "-o", target], what="to link the model")

    path = cached(cache_directory / "libraries", f"{library_key}.so", link)
    return Library(path, (onednn.library.name,) if onednn else ())


def _objects(
    sources: Sources,
    keys: dict[Unit, str],
    compiler: Compiler,
    flags: list[str],
    onednn: OneDnn | None,
    directory: Path,
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

            return cached(directory, f"{keys[unit]}.o", make)

        with ThreadPoolExecutor(max_workers=cpu_count() or 1) as pool:
            return list(pool.map(compile_unit, sources.units))
