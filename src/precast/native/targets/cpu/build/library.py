"""Sources → one shared library: units are compiled separately and cached, then linked."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from pathlib import Path

from precast.cache import Store, content_key
from precast.cache.partial import partial_folder
from precast.events import stage
from precast.native.targets.cpu.build.built import LIBRARIES, Library
from precast.native.targets.cpu.build.compiler import LINK_FLAGS, Compiler, find_compiler, run_compiler
from precast.native.targets.cpu.build.objects import Tools, compile_early, compile_objects, object_keys
from precast.native.targets.cpu.build.onednn import find_onednn
from precast.native.targets.cpu.build.progress import showing_progress
from precast.native.targets.cpu.sources import Sources


@stage
def build(
    sources: Sources,
    *,
    store: Store,
    compiler: str | None = None,
    extra_flags: Sequence[str] = (),
    onednn_prefix: Path | None = None,
) -> Library:
    """Build `sources`, or return the cached library; only new units are compiled."""
    recipe = _Recipe(sources, _tools(sources, compiler, extra_flags, onednn_prefix))
    path = store.file(LIBRARIES, recipe.key, lambda target: recipe.link(target, store), suffix=".so")
    return Library(recipe.key, recipe.needs, path=path)


def start_build(sources: Sources, *, store: Store, compiler: str | None = None) -> Callable[[], Library]:
    """Build on a separate thread; the returned function waits for it. Call it inside ``store.held()``."""
    begun = ThreadPoolExecutor(max_workers=1, thread_name_prefix="precast-build")
    building = begun.submit(copy_context().run, build, sources, store=store, compiler=compiler)
    begun.shutdown(wait=False)

    def finish() -> Library:
        library = building.result()
        # Until now, the store was free to evict files.
        return library if library.path.exists() else build(sources, store=store, compiler=compiler)

    return finish


def build_file(
    sources: Sources,
    target: Path,
    *,
    store: Store,
    compiler: str | None = None,
    extra_flags: Sequence[str] = (),
    data: Mapping[str, Path] | None = None,
) -> Library:
    """Build `sources` to `target`, which appears complete or not at all; only the compiled units are cached.

    The bytes of the files in `data` are linked in as page-aligned read-only memory, under these symbols.
    """
    recipe = _Recipe(sources, _tools(sources, compiler, extra_flags))
    with partial_folder(f".{target.name[:100]}.", target.parent) as scratch:
        linked = scratch / target.name
        objects = [_data_object(name, path, scratch, recipe.tools.compiler) for name, path in (data or {}).items()]
        recipe.link(linked, store, objects)
        os.replace(linked, target)
    return Library(recipe.key, recipe.needs, path=target)


def build_early(sources: Sources, *, store: Store, compiler: str | None = None) -> None:
    """Begin to compile units that some library will need; cached ones are skipped."""
    compile_early(sources, _tools(sources, compiler), store)


def _tools(
    sources: Sources, compiler: str | None, extra_flags: Sequence[str] = (), onednn_prefix: Path | None = None
) -> Tools:
    onednn = find_onednn(onednn_prefix) if sources.needs_onednn else None
    return Tools(find_compiler(compiler), onednn, tuple(extra_flags))


class _Recipe:
    """How one library is built, and the cache keys of its inputs."""

    def __init__(self, sources: Sources, tools: Tools):
        self.sources, self.tools = sources, tools
        # The library is linked without a path to oneDNN: it is loaded before the model is.
        libraries = [tools.onednn.library] if tools.onednn else []
        self.link_flags = (*LINK_FLAGS, *tools.extra_flags, *map(str, libraries))
        self.keys = object_keys(sources, tools)
        self.key = content_key([*self.keys.values(), *self.link_flags])
        self.needs = tuple(library.name for library in libraries)

    def link(self, target: Path, store: Store, further: Sequence[Path] = ()) -> None:
        with showing_progress("Building native code", total=len(self.sources.units) + 1) as progress:
            objects = compile_objects(self.sources, self.keys, self.tools, store, progress)
            arguments: list[str | Path] = [*objects, *further, *self.link_flags, "-o", target]
            run_compiler(self.tools.compiler, arguments, what="to link the model")


def _data_object(symbol: str, path: Path, folder: Path, compiler: Compiler) -> Path:
    """A file's bytes as an object file, in a section that the linker may place at any distance from code."""
    source, made = folder / f"{symbol}.s", folder / f"{symbol}.o"
    lines = [
        '.section .lrodata,"al",@progbits', ".balign 4096", f".globl {symbol}", f".hidden {symbol}", f"{symbol}:",
        f".incbin {json.dumps(str(path.resolve()))}", '.section .note.GNU-stack,"",@progbits',
    ]  # fmt: skip
    source.write_text("\n".join(lines) + "\n")
    run_compiler(compiler, ["-c", source, "-o", made], what="to put data into a library")
    return made
