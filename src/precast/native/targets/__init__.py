"""Targets: the kinds of devices that native code is compiled for, and everything specific to each.

Rules, loop programs, shared passes and the driver are independent of the target; they ask a `Target`::

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
    """What a target built: its key in the store, and the libraries to load before it, by their file names."""

    key: str
    needs: tuple[str, ...] = ()


class OpenEntry(Protocol):
    """One program, ready to be called with torch tensors."""

    def run(self, tensors: Sequence[Any], *, like_torch: bool) -> tuple[Any, ...]:
        """The program's outputs, except those written into inputs; `like_torch` requests torch tensors."""


@dataclass(frozen=True)
class StepTime:
    """Nanoseconds that a step took: in all calls, in the fastest, and in the last one, which began at ``started``."""

    calls: int
    total: int
    shortest: int
    started: int
    last: int


class Target(ABC):
    """One kind of device: how loop programs are fused for it, printed, built and called.

    `passes`, `start` and `open` must be implemented. Everything else has a default that suits a target without it: no
    autotuning, no early builds, nothing kept on disk, no timers, no libraries to ship.
    """

    name: str
    """The name of the target in stored code."""
    device: str
    """The devices whose tensors it computes with, as in ``torch.device.type``."""
    routines: Collection[str]
    """The library routines it has: an operator whose rule calls any other is an eager fallback."""
    multiplies_half: bool = False
    """Whether its GEMMs accept float16; otherwise their operands are converted to float32."""
    likes_channels_last: bool = False
    """Whether its convolutions are faster on channels-last images: those saved for a backward then are, too."""
    keeps_code: bool = False
    """Whether `find` in another process finds what `start` built in this one."""

    @property
    def alone(self) -> Target:
        """The target for programs that run without torch: it may have routines that are no better than torch's."""
        return self

    def libraries(self, entries: Sequence[Entry]) -> tuple[str, ...]:
        """Libraries that these entries' code loads by itself when it runs, by their file names."""
        return ()

    @property
    @abstractmethod
    def passes(self) -> Sequence[LoopPass]:
        """The passes over loop programs, in order."""

    @property
    def reusing_passes(self) -> Collection[LoopPass]:
        """The passes that reuse a buffer's memory for another."""
        return ()

    def takes(self, operator: str, steps: Sequence[Step]) -> bool:
        """Whether it can run the steps that an operator was lowered to; if not, the operator is an eager fallback."""
        return True

    def tune(self, entries: Sequence[Entry], options: Options) -> Sequence[Entry]:
        """Autotuning: the entries with the fastest variants found by measuring; called with ``measure``."""
        return entries

    def identity(self, options: Options) -> str:
        """What decides the built code besides our own sources, e.g. which compiler there is."""
        return self.name

    def get_ready(self, routines: Iterable[str], options: Options) -> None:
        """Begin to build these routines, which some later program is known or likely to call."""
        return

    @abstractmethod
    def start(self, entries: Sequence[Entry], options: Options) -> Callable[[], Code]:
        """Generate code for the entries and begin to build it; the returned function waits for the build."""

    def find(self, key: str, needs: Sequence[str], options: Options) -> Code:
        """What `start` built before, perhaps in another process; a ``BuildError`` if it has been evicted.

        It can be opened later even if the store evicts it in the meantime.
        """
        raise AssertionError(f"the target {self.name} keeps no code")

    @abstractmethod
    def open(
        self, code: Code, programs: Sequence[LoopProgram], weights: Mapping[str, torch.Tensor] | None = None
    ) -> Sequence[OpenEntry]:
        """Load code over constants by their names. Of a stored program, only its fallback steps are present."""

    def listing(self, entries: Sequence[Entry]) -> Mapping[Step, str]:
        """The code generated for each step, for display; of some steps, or all."""
        return {}

    def repeated(self, graph: CompiledGraph) -> Callable[[list[Any]], list[Any]] | None:
        """A faster way to call a compiled graph repeatedly; None if there is none."""
        return None

    def way_of(self, step: Step) -> str | None:
        """A one-word name of the variant that `tune` chose for a step; None if there was no choice."""
        return None

    def step_times(self, entry: OpenEntry, steps: int) -> Sequence[StepTime]:
        """The accumulated times of all steps of an entry that was built with ``profile``; zeros without timers."""
        return (StepTime(0, 0, 0, 0, 0),) * steps

    def build_library(
        self, entries: Sequence[Entry], storages: Mapping[str, Storage], options: Options, *, processor: str | None
    ) -> tuple[bytes, tuple[str, ...]]:
        """A library to ship, for a named kind of processor or this machine's, and the other libraries that it needs.

        `storages` locates the state in stored weights.
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
        """A library with weights and a manifest inside; `place` maps the hash of its code to the path to write."""
        raise self._no_libraries()

    def _no_libraries(self) -> InputValueError:
        return InputValueError(
            f"the target {self.name} makes no libraries",
            why="packages hold code that runs without Python",
            fix="package for another target, or compile in process",
        )


@cache
def targets() -> tuple[Target, ...]:
    """All targets; the first also serves graphs without tensors. Imported on first use."""
    from precast.native.targets.cpu.target import CpuTarget
    from precast.native.targets.cuda.target import CudaTarget

    return CpuTarget(), CudaTarget()


def target_named(name: str) -> Target:
    """The target of this name."""
    return next(target for target in targets() if target.name == name)


def target_for(devices: Iterable[str]) -> Target:
    """The target of these devices; of several, an accelerator's. Tensors on other devices are eager fallbacks."""
    there = set(devices)
    return next((target for target in reversed(targets()) if target.device in there), targets()[0])
