"""Targets: the kinds of devices that native code is made for, and what each of them has of its own.

Rules, loop programs, shared passes and the driver know none of them; they ask a `Target`::

    graph ─ rules ─▶ loop program ─ passes ─▶ fused ─ tune ─▶ entries ─ start ─▶ code ─ open ─▶ entries that run

A new target is one class, in a folder of its own, and one line in `targets`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from precast.errors import InputValueError

if TYPE_CHECKING:
    import torch

    from precast.native.call import CompiledGraph
    from precast.native.describe import Entry, Storage
    from precast.native.loops.passes import LoopPass
    from precast.native.loops.program import LoopProgram, Step
    from precast.options import Options


@dataclass(frozen=True)
class Code:
    """What a target built: its key in the store, and which libraries must be loaded before it, by their file names."""

    key: str
    needs: tuple[str, ...] = ()


class OpenEntry(Protocol):
    """One program, ready to be called over torch's tensors."""

    def run(self, tensors: Sequence[Any], *, like_torch: bool) -> tuple[Any, ...]:
        """The program's outputs, but for those that it writes into inputs; `like_torch` asks for torch's tensors."""


@dataclass(frozen=True)
class StepTime:
    """Nanoseconds that a step took: in all calls, in the quickest, and in the last one, which began at ``started``."""

    calls: int
    total: int
    shortest: int
    started: int
    last: int


class Target(ABC):
    """One kind of device: how loop programs are fused for it, printed, built and called.

    What must be written: `passes`, `start` and `open`. All else has a default that fits a target without it: no
    autotuning, nothing to begin early, nothing kept on disk, no timers, no libraries to ship.
    """

    name: str
    """What stored code calls it by."""
    device: str
    """Torch's name for the devices whose tensors it computes with: ``torch.device.type``."""
    routines: Collection[str]
    """The library routines it has: an operator whose rule calls another is an eager fallback."""
    multiplies_half: bool = False
    """Whether its products take float16; otherwise they are given float32 then."""
    likes_channels_last: bool = False
    """Whether its convolutions are faster on images laid out channels last: then those saved for a backward do, too."""
    keeps_code: bool = False
    """Whether `find` finds in another process what `start` built in this one."""

    @property
    @abstractmethod
    def passes(self) -> Sequence[LoopPass]:
        """The passes over loop programs, in order."""

    @property
    def reusing_passes(self) -> Collection[LoopPass]:
        """Those of the passes that give a buffer's memory to another."""
        return ()

    def takes(self, operator: str, steps: Sequence[Step]) -> bool:
        """Whether it can run what a rule made of an operator, by its name; if not, that is an eager fallback."""
        return True

    def tune(self, entries: Sequence[Entry], options: Options) -> Sequence[Entry]:
        """The entries with what was found by measuring to be the fastest of several ways; asked with ``measure``."""
        return entries

    def identity(self, options: Options) -> str:
        """What besides our own sources decides the code that is built, e.g. which compiler there is."""
        return self.name

    def get_ready(self, routines: Iterable[str], options: Options) -> None:
        """Begin to build these routines, which some program to come is known to call, or likely to."""
        return

    @abstractmethod
    def start(self, entries: Sequence[Entry], options: Options) -> Callable[[], Code]:
        """Generate code for the entries and begin to build it; what is returned waits for that."""

    def find(self, key: str, needs: Sequence[str], options: Options) -> Code:
        """What `start` built before, perhaps in another process; a ``BuildError`` if it is there no more.

        What was found can be opened later, whatever becomes of the store.
        """
        raise AssertionError(f"the target {self.name} keeps no code")

    @abstractmethod
    def open(
        self, code: Code, programs: Sequence[LoopProgram], weights: Mapping[str, torch.Tensor] | None = None
    ) -> Sequence[OpenEntry]:
        """Load code over constants by their names. Of a program that was stored, only its fallback steps are known."""

    def listing(self, entries: Sequence[Entry]) -> Mapping[Step, str]:
        """The code that is generated for each step, for people to read; of some steps, or all."""
        return {}

    def repeated(self, graph: CompiledGraph) -> Callable[[list[Any]], list[Any]] | None:
        """A faster way to call a compiled graph again and again; None if there is none."""
        return None

    def way_of(self, step: Step) -> str | None:
        """In a word, which of several ways of computing a step was chosen by `tune`; None if there was no choice."""
        return None

    def step_times(self, entry: OpenEntry, steps: int) -> Sequence[StepTime]:
        """The times so far of all steps of an entry that was built with ``profile``; zeros without timers."""
        return (StepTime(0, 0, 0, 0, 0),) * steps

    def build_library(
        self, entries: Sequence[Entry], storages: Mapping[str, Storage], options: Options, *, processor: str | None
    ) -> tuple[bytes, tuple[str, ...]]:
        """A library to ship, for all processors like one by its name or for this machine's; and which others it needs.

        `storages` says where the state is among stored weights.
        """
        raise self._no_libraries()

    def write_library(
        self,
        entry: Entry,
        storages: Mapping[str, Storage],
        options: Options,
        *,
        weights: Path,
        manifest: str,
        place: Callable[[str], Path],
    ) -> Path:
        """A library with weights and a manifest inside, written to the place that is told for a hash of its code."""
        raise self._no_libraries()

    def _no_libraries(self) -> InputValueError:
        return InputValueError(
            f"the target {self.name} makes no libraries",
            why="packages hold code that runs without Python",
            fix="package for another target, or compile in process",
        )


@cache
def targets() -> tuple[Target, ...]:
    """All targets there are; the first is for graphs without tensors too. Loaded when first asked for."""
    from precast.native.targets.cpu.target import CpuTarget
    from precast.native.targets.cuda.target import CudaTarget

    return CpuTarget(), CudaTarget()


def target_named(name: str) -> Target:
    """The target that stored code calls so."""
    return next(target for target in targets() if target.name == name)


def target_for(devices: Iterable[str]) -> Target:
    """The target of these devices; of several, an accelerator's. What is on others is left to torch."""
    there = set(devices)
    return next((target for target in reversed(targets()) if target.device in there), targets()[0])
