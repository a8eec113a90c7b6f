"""Programs through the ways that there are to compile them.

Those of a batch are built together: first each is traced and its loops are interpreted, then all run as machine code.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

import precast
from precast.cache import Store
from precast.errors import PrecastError
from tests.fuzz.batches import Batch
from tests.fuzz.judge import Expected, Verdict, expected, judge, run
from tests.fuzz.observe import Observation, observe_inference, observe_recorded, observe_training, tensors_of
from tests.fuzz.programs import Program
from tests.fuzz.undefined import is_defined

MODES = ("inference", "frozen", "training", "package", "whole")
"""``whole`` is `precast.compile` as users call it, caches and all; the first three differ from it in the build only."""
STAGES = ("loops", "code")
ROOT = Path(__file__).parents[2]
CACHE = 2**31


@dataclass(frozen=True)
class Case:
    """A program to be tried in these modes; the seed says which numbers it begins with."""

    seed: int
    program: Program
    modes: tuple[str, ...]

    @property
    def given(self) -> str:
        """What inputs are to autograd while it is trained."""
        return ("leaves", "results", "data")[self.seed % 3]


@dataclass(frozen=True)
class Report:
    """How one case fared in one mode at one stage; without a verdict: it is about to be tried."""

    case: int
    mode: str
    stage: str
    verdict: Verdict | None = None


def modes_for(seed: int) -> tuple[str, ...]:
    """Cheap ways for most, dear ones for some."""
    choose = random.Random(f"modes of {seed}")
    modes = choose.choices(("inference", "frozen", "training"), (4, 2, 4))
    modes += [mode for mode, chance in (("package", 0.08), ("whole", 0.01)) if choose.random() < chance]
    return tuple(modes)


class Trial:
    """One program in one mode: compiled once, called at each stage."""

    def __init__(self, case: Case, mode: str, compile_module: Callable[..., Any]):
        self.case, self.mode = case, mode
        train = partial(observe_training, given=case.given, seed=case.seed)
        self.observe = train if mode == "training" else observe_inference
        self.module, _ = case.program.made(case.seed)
        sizes = [case.program, *([case.program.grown()] if case.program.other_size is not None else [])]
        self.wanted: list[tuple[Program, Expected]] = []
        for program in sizes:
            wanted = expected(program, case.seed, self.observe)
            # That eager takes one size only says nothing of whoever compiles for both.
            if program is case.program or wanted.eager.error is None:
                self.wanted.append((program, wanted))
        dynamic = (True, None)[case.seed % 2] if len(sizes) > 1 else False
        self.call = compile_module(self.module, dynamic=dynamic)

    def run(self) -> Verdict:
        verdict = Verdict("right")
        for program, wanted in self.wanted:
            module, inputs = program.made(self.case.seed)
            with torch.no_grad():
                for mine, fresh in zip(tensors_of(self.module), tensors_of(module), strict=True):
                    mine.copy_(fresh)
            found = judge(self.observe(self.call, self.module, inputs), wanted)
            if found.is_failure:
                return found
            verdict = found if found.kind != "right" else verdict
        return verdict


def is_changed(program: Program, seed: int) -> bool:
    """Whether the program changes its own state: then it must not be frozen."""
    (module, inputs), (before, _) = program.made(seed), program.made(seed)
    observe_inference(module, module, inputs)
    return not all(map(torch.equal, tensors_of(module), tensors_of(before)))


def run_cases(
    cases: Sequence[Case],
    folder: Path,
    *,
    flags: Sequence[str] = ("-O1",),
    stages: Sequence[str] = STAGES,
    store: Store | None = None,
    shared: Path | None = None,
) -> Iterator[Report]:
    """Try all cases in their modes.

    What is built is kept in the store, or, without one, in the folder that is shared with others who try programs.
    """
    warnings.simplefilter("ignore")
    shared = shared or folder
    batch = Batch(store or Store(shared / "batches", limit=CACHE), tuple(flags))
    cases = [case if is_defined(case.program, case.seed, case.given) else replace(case, modes=()) for case in cases]
    trials: dict[tuple[int, str], Trial] = {}
    for number, case in enumerate(cases):
        for mode in case.modes:
            if mode in ("package", "whole") or (mode == "frozen" and is_changed(case.program, case.seed)):
                continue
            yield Report(number, mode, "loops")
            trial = Trial(
                case, mode, partial(precast.compile, fullgraph=True, backend=batch.backend(freeze=mode == "frozen"))
            )
            verdict = trial.run()
            yield Report(number, mode, "loops", verdict)
            if verdict.kind in ("right", "unjudged") and trial.wanted[0][1].eager.error is None:
                trials[number, mode] = trial
    if "code" in stages:
        yield Report(-1, "", "build")
        batch.build()
        for (number, mode), trial in trials.items():
            yield Report(number, mode, "code")
            yield Report(number, mode, "code", trial.run())
        yield from _whole(cases, shared)
        yield from _packages(cases, folder, shared)


def _whole(cases: Sequence[Case], shared: Path) -> Iterator[Report]:
    """Twice, since the second time it starts from what the first has left on disk."""
    options = {"cache_directory": shared / "whole"}
    for number, case in enumerate(cases):
        if "whole" in case.modes:
            for stage in ("cold", "warm"):
                yield Report(number, "whole", stage)
                yield Report(
                    number,
                    "whole",
                    stage,
                    Trial(case, "training", partial(precast.compile, fullgraph=True, options=options)).run(),
                )


def _packages(cases: Sequence[Case], folder: Path, shared: Path) -> Iterator[Report]:
    """All in one file, which a process without torch runs."""
    wanted, entries = dict[int, Expected](), dict[int, Any]()
    for number, case in enumerate(cases):
        if "package" in case.modes:
            yield Report(number, "package", "export")
            found = expected(case.program, case.seed, observe_inference)
            if found.eager.error is None:
                try:
                    entries[number] = precast.export.export(*case.program.made(case.seed))
                    wanted[number] = found
                except Exception as error:  # noqa: BLE001 (judged as any other)
                    # Exported is what eager does while gradients are recorded.
                    recorded = run(case.program, case.seed, observe_recorded)
                    found = replace(found, eager=found.eager if recorded.error is None else recorded)
                    yield Report(number, "package", "export", judge(Observation(error), found))
    for number, group in _packaged(entries, folder, shared):
        if isinstance(group, BaseException):
            yield Report(number, "package", "code", judge(Observation(group), wanted[number]))
            continue
        yield Report(number, "package", "code")
        case = cases[number]
        _, inputs = case.program.made(case.seed)
        outputs = _run_package(group, f"program_{number}", inputs, folder)
        if isinstance(outputs, list):
            wanted[number].eager.results[len(outputs) :] = []
            outputs = Observation(None, outputs)
        yield Report(number, "package", "code", judge(outputs, wanted[number], sees_memory=False))


def _packaged(entries: dict[int, Any], folder: Path, shared: Path) -> Iterator[tuple[int, Path | BaseException]]:
    """Pairs of a case and the file that it is in, or why it is in none."""
    if not entries:
        return
    path = folder / "programs.precast"
    options = {"cache_directory": shared / "packages", "compiler": quick_compiler(shared)}
    try:
        named = {f"program_{number}": program for number, program in entries.items()}
        precast.package(named, path=path, samples=False, options=options)
    except Exception as error:  # noqa: BLE001 (one of them, or all, are refused)
        if len(entries) == 1:
            yield next(iter(entries)), error
            return
        numbers = list(entries)
        for half in (numbers[: len(numbers) // 2], numbers[len(numbers) // 2 :]):
            yield from _packaged({number: entries[number] for number in half}, folder, shared)
    else:
        for number in entries:
            yield number, path


def quick_compiler(folder: Path) -> str:
    """A command that compiles with little effort, whatever it is told."""
    script = folder / "quick-g++"
    if not script.exists():
        # Whoever shares the folder sees it whole or not at all.
        written = folder / f"quick-g++-{os.getpid()}"
        written.write_text('#!/bin/sh\nexec g++ "$@" -O1\n')
        written.chmod(0o755)
        written.rename(script)
    return str(script)


def _run_package(
    path: Path, entry: str, inputs: Sequence[torch.Tensor], folder: Path
) -> list[torch.Tensor] | Observation:
    """The results of a process that has no torch; in this one where numpy has no such type."""
    if any(each.dtype == torch.bfloat16 for each in inputs):
        return _called(path, entry, inputs)
    given, results = folder / "given.npz", folder / "results.npz"
    np.savez(given, *(each.numpy() for each in inputs))
    command = [sys.executable, "-m", "tests.fuzz.run_package", str(path), entry, str(given), str(results)]
    finished = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    if finished.returncode == 1 and "PrecastError" in finished.stdout:
        return Observation(PrecastError(finished.stdout, why="", fix=""))
    if finished.returncode != 0:
        return Observation(RuntimeError(f"exit {finished.returncode}: {finished.stderr[-300:]}"))
    with np.load(results) as arrays:
        return [_tensor(arrays[name]) for name in arrays.files]


def _tensor(array: np.ndarray[Any, Any]) -> torch.Tensor:
    """An array of a file; numpy writes bfloat16 as two bytes of it knows not what."""
    if array.dtype.kind == "V":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def _called(path: Path, entry: str, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor] | Observation:
    try:
        return [torch.as_tensor(each).clone() for each in precast.runtime.load(path)[entry](*inputs)]
    except Exception as error:  # noqa: BLE001 (judged as any other)
        return Observation(error)
