"""Units → object files, each compiled once: what the store has, or what was started early, is not compiled again."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from os import cpu_count
from pathlib import Path

from precast.build.compiler import COMPILE_FLAGS, EFFORT_FLAGS, Compiler, run_compiler
from precast.build.early import is_started, start, take
from precast.build.onednn import OneDnn
from precast.build.progress import NoProgress, Progress
from precast.cache import Store, content_key, processor_identity
from precast.cache.scratch import new_scratch_folder, scratch_folder
from precast.ir.loops.sources import Effort, Sources, Unit

OBJECTS = "objects"
"""The kind of the store's entries."""


@dataclass(frozen=True)
class Tools:
    """What, beside its text, decides what a unit becomes."""

    compiler: Compiler
    onednn: OneDnn | None
    extra_flags: tuple[str, ...] = ()

    def flags(self, effort: Effort, headers: Path) -> list[str]:
        """How to compile a unit with headers in this folder."""
        folders = [headers, *([self.onednn.include] if self.onednn else [])]
        return [*COMPILE_FLAGS, *EFFORT_FLAGS[effort], *self.extra_flags, *(f"-I{folder}" for folder in folders)]


def compile_early(sources: Sources, tools: Tools, store: Store) -> None:
    """Begin to compile units that some program will need, unless they are in the store, or have been begun."""
    missing = {
        key: unit
        for unit, key in object_keys(sources, tools).items()
        if not is_started(key) and store.get(OBJECTS, key) is None
    }
    if missing:
        folder = new_scratch_folder()
        write_sources(sources, folder)
    for effort in {unit.effort: None for unit in missing.values()}:
        command = [*tools.compiler.command, *tools.flags(effort, folder)]
        start(command, {key: folder / unit.name for key, unit in missing.items() if unit.effort == effort})


def object_keys(sources: Sources, tools: Tools) -> dict[Unit, str]:
    """The names under which the store knows what these units become."""
    headers = content_key(part for header in sources.headers for part in (header.name, header.text))
    machine = [tools.compiler.identity, processor_identity(), *COMPILE_FLAGS, *tools.extra_flags, headers]
    return {unit: content_key([*machine, *_own_parts(unit, tools.onednn)]) for unit in sources.units}


def _own_parts(unit: Unit, onednn: OneDnn | None) -> list[str]:
    version = onednn.identity if onednn and unit.needs_onednn else ""
    return [*EFFORT_FLAGS[unit.effort], version, unit.name, unit.text]


def write_sources(sources: Sources, folder: Path) -> None:
    """Put headers and units where the compiler finds them."""
    for unit in (*sources.headers, *sources.units):
        (folder / unit.name).write_text(unit.text)


def compile_objects(
    sources: Sources, keys: Mapping[Unit, str], tools: Tools, store: Store, progress: Progress | NoProgress
) -> list[Path]:
    """The object files of all units, in order."""
    with scratch_folder() as folder:
        write_sources(sources, folder)

        def compile_unit(unit: Unit) -> Path:
            def make(target: Path) -> None:
                if not take(keys[unit], target):
                    flags = tools.flags(unit.effort, folder)
                    arguments: list[str | Path] = [*flags, "-c", folder / unit.name, "-o", target]
                    run_compiler(tools.compiler, arguments, what=f"the generated {unit.name}")

            made = store.file(OBJECTS, keys[unit], make, suffix=".o")
            progress.advance()
            return made

        with ThreadPoolExecutor(max_workers=cpu_count() or 1) as pool:
            # The long ones first, so that none is left to run alone; others are at work on what was started early.
            order = sorted(sources.units, key=lambda unit: (is_started(keys[unit]), -len(unit.text)))
            objects = dict(zip(order, pool.map(compile_unit, order), strict=True))
        return [objects[unit] for unit in sources.units]
