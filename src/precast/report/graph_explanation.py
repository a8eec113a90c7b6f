"""Describes one graph's native form in words."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from torch import fx

from precast.graph.compilation import kind_of_graph
from precast.graph.nodes import source_line_of
from precast.native.describe import Entry
from precast.native.loops.buffers import Buffer
from precast.native.loops.index import Index, constant
from precast.native.loops.program import (
    FallbackStep,
    Kernel,
    KernelGroup,
    LibraryCall,
    Step,
    all_steps,
    read_by,
    written_by,
)
from precast.native.split import SplitGraph
from precast.ops.own_operators import random_seed
from precast.report.step_costs import operators_of, times_of

_LONGEST_NAME = 44


@dataclass(frozen=True)
class StepLine:
    """A kernel or a library call: its operators, and the bytes it reads and writes.

    A kernel that was fused horizontally states for how many tensors it runs.
    """

    kind: str
    name: str
    operators: tuple[str, ...]
    moved: Index
    times: int = 1


@dataclass(frozen=True)
class TorchLine:
    """An eager fallback, and the user's line of it."""

    operator: str
    at: str | None


@dataclass(frozen=True)
class GraphExplanation:
    """What became of one graph. `left_to_torch` are nodes that split it: native code cannot represent their values."""

    name: str
    kernels: tuple[StepLine, ...]
    library_calls: tuple[StepLine, ...]
    fallbacks: tuple[TorchLine, ...]
    left_to_torch: tuple[TorchLine, ...]
    native_segments: int
    scratch: Index

    @property
    def moved(self) -> Index:
        """Bytes that kernels and library calls read and write."""
        return _total(step.moved for step in (*self.kernels, *self.library_calls))

    def as_data(self) -> dict[str, object]:
        """The same as plain data; bytes that depend on dynamic sizes are expressions."""
        return {
            "graph": self.name,
            "steps": [
                {"kind": step.kind, "name": step.name, "operators": step.operators, "bytes": _number(step.moved)}
                | ({} if step.times == 1 else {"times": step.times})
                for step in (*self.kernels, *self.library_calls)
            ],
            "fallbacks": [{"operator": line.operator, "at": line.at} for line in self.fallbacks],
            "left_to_torch": [{"operator": line.operator, "at": line.at} for line in self.left_to_torch],
            "scratch_bytes": _number(self.scratch),
        }

    def __str__(self) -> str:
        calls = len(self.fallbacks) + len(self.left_to_torch)
        head = (
            f"{self.name} graph: {_counted(len(self.kernels), 'kernel')}, "
            f"{_counted(len(self.library_calls), 'library call')}, {_counted(calls, 'call')} back into torch; "
            f"moves {_bytes(self.moved)}, {_bytes(self.scratch)} of scratch memory"
        )
        return "\n".join([head, *_step_lines((*self.kernels, *self.library_calls)), *self._torch_lines()])

    def _torch_lines(self) -> Iterable[str]:
        for line in self.fallbacks:
            yield f"  torch    {line.operator}{_at(line)}"
        if self.left_to_torch:
            yield f"  split into {_counted(self.native_segments, 'native part')}, since native code cannot hold what"
            yield "  these take or return (complex or sparse tensors, sizes that depend on data, subgraphs, effects):"
        for line in self.left_to_torch:
            yield f"    torch  {line.operator}{_at(line)}"


def explain_graph(name: str, split: SplitGraph, entries: Sequence[Entry]) -> GraphExplanation:
    """Collect the decisions of the stages."""
    steps = [step for entry in entries for step in all_steps(entry.program)]
    fallbacks = [TorchLine(step.operator, step.at) for step in steps if isinstance(step, FallbackStep)]
    left = [
        node
        for segment in split.segments
        for node in segment.nodes
        if not segment.is_native and node.target is not random_seed
    ]
    return GraphExplanation(
        kind_of_graph(name),
        tuple(_step_line("kernel", step) for step in steps if isinstance(step, Kernel | KernelGroup)),
        tuple(_step_line("library", step) for step in steps if isinstance(step, LibraryCall)),
        tuple(fallbacks),
        tuple(TorchLine(str(node.target), _line(node)) for node in left),
        len(entries),
        _total(entry.plan.arena_size for entry in entries),
    )


def _line(node: fx.Node) -> str | None:
    line = source_line_of(node)
    return str(line) if line else None


def _step_line(kind: str, step: Kernel | KernelGroup | LibraryCall) -> StepLine:
    moved = _total(each.byte_size for each in _touched(step))
    return StepLine(kind, step.name, operators_of(step), moved, times_of(step))


def _touched(step: Step) -> Iterable[Buffer]:
    return dict.fromkeys((*read_by(step), *written_by(step)))


def _total(sizes: Iterable[Index]) -> Index:
    return sum(sizes, constant(0))


def _step_lines(steps: Sequence[StepLine]) -> list[str]:
    shown = [step.name if len(step.name) <= _LONGEST_NAME else f"{step.name[: _LONGEST_NAME - 1]}…" for step in steps]
    names = max(map(len, shown), default=0)
    words = [", ".join(step.operators) + (f", {step.times} times" if step.times > 1 else "") for step in steps]
    longest = max(map(len, words), default=0)
    return [
        f"  {step.kind:<8} {name:<{names}}   {word:<{longest}}   {_bytes(step.moved)}"
        for step, name, word in zip(steps, shown, words, strict=True)
    ]


def _number(size: Index) -> int | str:
    return str(size) if size.constant is None else size.constant


def _at(line: TorchLine) -> str:
    return f"   at {line.at}" if line.at else ""


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _bytes(size: Index) -> str:
    """A number of bytes for display; an expression if it depends on dynamic sizes."""
    if size.constant is None:
        return f"{size} bytes"
    number, unit = float(size.constant), "bytes"
    for larger in ("KiB", "MiB", "GiB"):
        if number < 1024:
            break
        number, unit = number / 1024, larger
    return f"{number:.0f} {unit}" if unit == "bytes" else f"{number:.1f} {unit}"
