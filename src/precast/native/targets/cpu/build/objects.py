"""Units → object files, each compiled once: cached units, and those started early, are not compiled again.

Units are started before they are needed: while a program is still traced, in Python, other cores are idle.

These are compiler processes, not threads of ours: they do not interfere with a fork, and end with this process if they
are not waited for. If one fails, the unit is compiled again where it is needed, which reports the error.
"""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from dataclasses import dataclass
from os import cpu_count
from pathlib import Path

from precast.cache import Store, content_key, processor_identity
from precast.cache.partial import new_scratch_folder, scratch_folder
from precast.events import UnitBuilt, tell
from precast.native.targets.cpu.build.compiler import COMPILE_FLAGS, EFFORT_FLAGS, Compiler, run_compiler
from precast.native.targets.cpu.build.onednn import OneDnn
from precast.native.targets.cpu.build.progress import NoProgress, Progress
from precast.native.targets.cpu.sources import Effort, Sources, Unit


@dataclass(frozen=True, eq=False)
class _Started:
    """One unit in progress: the process that compiles it, and the process that may wait for that."""

    compiling: subprocess.Popen[bytes]
    owner: int
    made: Path


_started: dict[str, _Started] = {}
"""By the key of the unit. Finished ones stay: another library may need the unit too."""


def start(command: Sequence[str], units: Mapping[str, Path]) -> None:
    """Run `command` with ``-c`` on units, by key: files in one folder, in which their object files appear too."""
    for share in _shares(list(units), max(1, (cpu_count() or 1) - 1)):
        files = [units[key] for key in share]
        compiling = subprocess.Popen(
            [*command, "-c", *map(str, files)],
            cwd=files[0].parent,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            process_group=0,
        )
        atexit.register(_end, compiling, os.getpid())
        for key, file in zip(share, files, strict=True):
            _started[key] = _Started(compiling, os.getpid(), file.with_suffix(".o"))


def is_started(key: str) -> bool:
    """Whether this process has started to compile the unit. A forked child has not: it cannot wait for it."""
    return key in _started and _started[key].owner == os.getpid()


def take(key: str, target: Path) -> bool:
    """Wait for the unit and copy it to `target`; False if it was not started, or not compiled."""
    if not is_started(key):
        return False
    started = _started[key]
    if started.compiling.wait() != 0 or not started.made.exists():
        return False
    shutil.copyfile(started.made, target)
    return True


def _shares(keys: list[str], count: int) -> list[list[str]]:
    return [share for number in range(count) if (share := keys[number::count])]


def _end(compiling: subprocess.Popen[bytes], owner: int) -> None:
    # A forked child has the registration too, and must leave its parent's processes alone.
    if os.getpid() == owner and compiling.poll() is None:
        with suppress(ProcessLookupError):
            os.killpg(compiling.pid, signal.SIGTERM)
        compiling.wait()


OBJECTS = "objects"
"""The kind of the store's entries."""


@dataclass(frozen=True)
class Tools:
    """What, besides its text, determines how a unit is compiled."""

    compiler: Compiler
    onednn: OneDnn | None
    extra_flags: tuple[str, ...] = ()

    def flags(self, effort: Effort, headers: Path) -> list[str]:
        """The flags to compile a unit with headers in this folder."""
        folders = [headers, *([self.onednn.include] if self.onednn else [])]
        return [*COMPILE_FLAGS, *EFFORT_FLAGS[effort], *self.extra_flags, *(f"-I{folder}" for folder in folders)]


def compile_early(sources: Sources, tools: Tools, store: Store) -> None:
    """Begin to compile units that some program will need, unless they are cached or already started."""
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
    """The cache keys of the object files of these units."""
    headers = content_key(part for header in sources.headers for part in (header.name, header.text))
    machine = [tools.compiler.identity, processor_identity(), *COMPILE_FLAGS, *tools.extra_flags, headers]
    return {unit: content_key([*machine, *_own_parts(unit, tools.onednn)]) for unit in sources.units}


def _own_parts(unit: Unit, onednn: OneDnn | None) -> list[str]:
    version = onednn.identity if onednn and unit.needs_onednn else ""
    return [*EFFORT_FLAGS[unit.effort], version, unit.name, unit.text]


def write_sources(sources: Sources, folder: Path) -> None:
    """Write headers and units to where the compiler expects them."""
    for unit in (*sources.headers, *sources.units):
        (folder / unit.name).write_text(unit.text)


def compile_objects(
    sources: Sources, keys: Mapping[Unit, str], tools: Tools, store: Store, progress: Progress | NoProgress
) -> list[Path]:
    """The object files of all units, in order."""
    with scratch_folder() as folder:
        write_sources(sources, folder)

        def compile_unit(unit: Unit) -> Path:
            started, was_stored = time.perf_counter(), True

            def make(target: Path) -> None:
                nonlocal was_stored
                was_stored = False
                if not take(keys[unit], target):
                    flags = tools.flags(unit.effort, folder)
                    arguments: list[str | Path] = [*flags, "-c", folder / unit.name, "-o", target]
                    run_compiler(tools.compiler, arguments, what=f"the generated {unit.name}")

            made = store.file(OBJECTS, keys[unit], make, suffix=".o")
            progress.advance()
            tell(UnitBuilt(unit.name, started, time.perf_counter() - started, was_stored))
            return made

        with ThreadPoolExecutor(max_workers=cpu_count() or 1) as pool:
            # The longest first, so that none is left to run alone; those started early last.
            order = sorted(sources.units, key=lambda unit: (is_started(keys[unit]), -len(unit.text)))
            contexts = [copy_context() for _ in order]
            made = pool.map(lambda context, unit: context.run(compile_unit, unit), contexts, order)
            objects = dict(zip(order, made, strict=True))
        return [objects[unit] for unit in sources.units]
