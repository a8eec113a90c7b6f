"""Estimates the costs of a program's steps: bytes moved, floating-point operations, and the user's lines.

A node of the graph may end up in several steps: a matrix product in a library call, its bias in a kernel. The
product's cost is then counted for the library call alone.

Also measures the machine's roofline: peak floating-point operations and bytes per second.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

import torch
from torch import fx

from precast.graph.nodes import has_value, module_path_of, source_line_of, value_of
from precast.native.loops.index import Computed, Index, Symbol, Variable, evaluate
from precast.native.loops.program import (
    Check,
    FallbackStep,
    KernelGroup,
    LibraryCall,
    Repeat,
    Run,
    Step,
    read_by,
    written_by,
)
from precast.native.targets import Target
from precast.ops.cost import bytes_moved, flops, size_hint
from precast.ops.facts import Fact, facts_of


@dataclass(frozen=True)
class StepCost:
    """One step in the user's terms; dynamic sizes have their traced values."""

    kind: str
    name: str
    operators: tuple[str, ...]
    lines: tuple[str, ...]
    moved: int
    flops: int
    times: int = 1
    """The number of tensors that a horizontally fused kernel runs for."""


def costs_of(steps: Sequence[Step], graph: fx.Graph, target: Target) -> tuple[StepCost, ...]:
    """The costs of the steps that the graph's nodes became."""
    nodes = {node.name: node for node in graph.nodes}
    sizes = traced_sizes(graph)
    members = [[nodes[name] for name in names_of(step) if name in nodes] for step in steps]
    shares = _flops_of_steps(steps, members)
    return tuple(
        StepCost(
            kind_of(step, target),
            step.name,
            operators_of(step),
            tuple(dict.fromkeys(place for node in own if (place := place_of(node)))),
            sum(number_of(buffer.byte_size, sizes) for buffer in dict.fromkeys((*read_by(step), *written_by(step)))),
            round(share),
            times_of(step),
        )
        for step, own, share in zip(steps, members, shares, strict=True)
    )


def cost_of_torch(nodes: Sequence[fx.Node]) -> StepCost:
    """The cost of nodes that torch runs one after the other."""
    targets = [_short(str(node.target)) for node in nodes]
    return StepCost(
        "torch",
        nodes[0].name,
        tuple(dict.fromkeys(targets)),
        tuple(dict.fromkeys(place for node in nodes if (place := place_of(node)))),
        sum(bytes_moved(node) for node in nodes if isinstance(node.target, torch._ops.OpOverload)),
        sum(_flops(node) for node in nodes),
    )


def kind_of(step: Step, target: Target) -> str:
    """A word for what runs the step."""
    match step:
        case LibraryCall():
            way = target.way_of(step)
            return "library" if way is None else f"library, {way}"
        case FallbackStep():
            return "torch"
        case Check():
            return "check"
        case Run() | Repeat():
            return "control flow"
    return "kernel"


def times_of(step: Step) -> int:
    """The number of kernels that run as this one."""
    return len(step.members) if isinstance(step, KernelGroup) else 1


def place_of(node: fx.Node) -> str:
    """The user's line of a node; if only library code led to it, its submodule."""
    line, path = source_line_of(node), module_path_of(node)
    return str(line) if line else f"module {path}" if path else ""


def operators_of(step: Step) -> tuple[str, ...]:
    """The operators in the step, each once, by their short names."""
    return tuple(dict.fromkeys(_short(origin.rpartition(": ")[2]) for origin in step.origins))


def _short(operator: str) -> str:
    """``add`` for ``aten.add.Tensor``."""
    namespace, _, name = operator.partition(".")
    return name.partition(".")[0] or namespace


def names_of(step: Step) -> Iterable[str]:
    """The names of the nodes in the step."""
    return dict.fromkeys(origin.partition(": ")[0] for origin in step.origins)


def _flops_of_steps(steps: Sequence[Step], members: Sequence[Sequence[fx.Node]]) -> list[float]:
    homes: dict[fx.Node, list[int]] = defaultdict(list)
    for number, own in enumerate(members):
        for node in own:
            homes[node].append(number)
    shares = [0.0] * len(steps)
    for node, numbers in homes.items():
        libraries = [number for number in numbers if isinstance(steps[number], LibraryCall)]
        # A later call may complete the result of an earlier one, e.g. add its bias.
        namesakes = [number for number in libraries if steps[number].name == node.name]
        workers = namesakes or libraries or numbers
        for number in workers:
            shares[number] += _flops(node) / len(workers)
    return shares


def _flops(node: fx.Node) -> int:
    is_counted = isinstance(node.target, torch._ops.OpOverload) and not facts_of(node) & {Fact.VIEW, Fact.RANDOM}
    return flops(node) if is_counted else 0


def traced_sizes(graph: fx.Graph) -> dict[str, int]:
    """The traced value of each symbol."""
    values = (value_of(node) for node in graph.nodes if has_value(node))
    numbers = (
        size
        for value in values
        for each in (value if isinstance(value, tuple | list) else (value,))
        for size in ((*each.shape, *each.stride()) if isinstance(each, torch.Tensor) else (each,))
    )
    return {
        str(size.node.expr): size_hint(size)
        for size in numbers
        if isinstance(size, torch.SymInt) and size.node.expr.is_Symbol
    }


def number_of(index: Index, sizes: Mapping[str, int]) -> int:
    """The value of an expression at the traced sizes."""

    def resolve(atom: Symbol | Variable | Computed) -> int:
        assert isinstance(atom, Symbol), f"the size of a buffer depends on {atom}"
        return sizes.get(atom.name, 1)

    return evaluate(index, resolve)


_SIDE = 512
_COPIED_BYTES = 64 * 2**20
_RUNS = 20


@dataclass(frozen=True)
class Roofline:
    """Peaks of this machine with `threads` threads: of a float32 GEMM, and of a copy larger than any cache."""

    threads: int
    flops_a_second: float
    bytes_a_second: float

    def at_least(self, flops_a_second: float) -> Roofline:
        """The same with a peak no lower than an observed one: on a busy machine, measured peaks are too low."""
        return replace(self, flops_a_second=max(self.flops_a_second, flops_a_second))

    def shortest_seconds(self, flops: float, moved: float) -> float:
        """The least time for this much work if all of its data comes from memory."""
        return max(flops / self.flops_a_second, moved / self.bytes_a_second)


def measure_roofline() -> Roofline:
    """The peaks with torch's current number of threads; measured once for each, in half a second."""
    return _measure(torch.get_num_threads())


@cache
def _measure(threads: int) -> Roofline:
    left, right = (torch.rand(_SIDE, _SIDE) for _ in range(2))
    source, target = (torch.zeros(_COPIED_BYTES // 4) for _ in range(2))
    product = _shortest(lambda: torch.mm(left, right))
    copy = _shortest(lambda: target.copy_(source))
    return Roofline(threads, 2 * _SIDE**3 / product, 2 * _COPIED_BYTES / copy)


def _shortest(call: Callable[[], object]) -> float:
    times = []
    for _ in range(_RUNS):
        started = time.perf_counter()
        call()
        times.append(time.perf_counter() - started)
    return min(times)
