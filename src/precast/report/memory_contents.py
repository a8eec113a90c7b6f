"""The memory of a graph for a report: every buffer with its kind, its size, and its lifetime in steps.

Parameters and inputs live as long as the graph runs, results from the step that writes them. Values passed between
segments, and residuals of a backward, live until the last segment that reads them has run; temporaries from the
first to the last step that accesses them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from torch import fx

from precast.graph.compilation import kind_of_graph
from precast.graph.nodes import is_state
from precast.native.loops.buffers import Buffer
from precast.native.loops.printer import describe_buffer
from precast.native.loops.program import LoopProgram, written_by
from precast.native.passes.memory import lifetimes
from precast.native.split import SplitGraph, ViewChain, saved_inputs
from precast.report import contents
from precast.report.lowered import LoweredGraph
from precast.report.step_costs import number_of, traced_sizes

_HELD_TO_THE_END = frozenset({"state", "input", "tangent", "gradient", "result"})


class MemoryWriter:
    """Collects the buffers of a graph, one native segment at a time; numbers are those of the whole graph's steps.

    ``saved`` are results that are passed to another graph.
    """

    def __init__(
        self,
        lowered: LoweredGraph,
        labels: Mapping[fx.Node, str],
        state: frozenset[str],
        saved: frozenset[str],
    ) -> None:
        graph = lowered.split.module.graph
        self._sizes = traced_sizes(graph)
        self._plans = {entry.program: entry.plan for entry in lowered.entries}
        self._labels = {node.name: label for node, label in labels.items()}
        self._kinds = dict(_input_kinds(graph, labels, state))
        result = "gradient" if kind_of_graph(lowered.name) == "backward" else "result"
        self._results = {name: "saved" if name in saved else result for name in _result_names(lowered.split)}
        self._is_made_here: set[int] = set()
        self._numbers: dict[tuple[int, Buffer], int] = {}
        self._by_node: dict[str, int] = {}
        self._found: list[contents.Buffer] = []
        self.arenas: list[int] = []

    def numbers(self, segment: int, buffers: Sequence[Buffer]) -> tuple[int, ...]:
        """The numbers of buffers that a step of the segment accesses."""
        keys = [(segment, each) for each in dict.fromkeys(buffers)]
        return tuple(self._numbers[key] for key in keys if key in self._numbers)

    def buffers(self, steps: int) -> tuple[contents.Buffer, ...]:
        """All buffers, for a graph of `steps` steps."""
        return tuple(
            replace(each, last=max(each.last, steps - 1))
            if each.kind in _HELD_TO_THE_END or (each.kind == "saved" and number in self._is_made_here)
            else each
            for number, each in enumerate(self._found)
        )

    def add(self, program: LoopProgram, results: Sequence[fx.Node], segment: int, first: int) -> None:
        """Add the memory of one program, whose first step has number ``first``; ``results`` are what it computes."""
        plan, last = self._plans[program], first + len(program.steps) - 1
        self.arenas.append(number_of(plan.arena_size, self._sizes))
        for each in program.inputs:
            if each.name in self._by_node:
                number = self._by_node[each.name]
                self._found[number] = replace(self._found[number], last=last)
            else:
                number = self._append(each, self._kinds.get(each.name, "passed on"), segment, 0, last)
                self._by_node[each.name] = number
            self._numbers[segment, each] = number
        # A result written over an input is no longer one.
        pairs = zip(program.results, results, strict=True) if len(results) == len(program.results) else ()
        nodes = {buffer: node.name for buffer, node in pairs if isinstance(buffer, Buffer)}
        written = _first_writes(program)
        for each in dict.fromkeys(program.outputs):
            node = nodes.get(each, each.name)
            kind = self._results.get(node, "passed on")
            number = self._append(each, kind, segment, first + written.get(each, 0), last)
            self._numbers[segment, each] = self._by_node[node] = number
            self._is_made_here.add(number)
        for each, (start, end) in lifetimes(program).items():
            # Some temporaries are not in the arena.
            offset = number_of(plan.offsets[each], self._sizes) if each in plan.offsets else None
            number = self._append(each, "temporary", segment, first + start, first + end, offset)
            self._numbers[segment, each] = number

    def _append(self, buffer: Buffer, kind: str, segment: int, first: int, last: int, offset: int | None = None) -> int:
        name = self._labels.get(buffer.name, buffer.name)
        value = describe_buffer(buffer).partition(": ")[2]
        size = number_of(buffer.byte_size, self._sizes)
        self._found.append(contents.Buffer(name, value, kind, size, segment, first, last, offset))
        return len(self._found) - 1


def _input_kinds(graph: fx.Graph, labels: Mapping[fx.Node, str], state: frozenset[str]) -> Iterator[tuple[str, str]]:
    saved = saved_inputs(graph)
    for node in graph.nodes:
        if node.op == "get_attr":
            yield node.name, "state"
        elif node.op == "placeholder" and node in saved:
            yield node.name, "saved"
        elif node.op == "placeholder":
            is_parameter = is_state(node) or labels.get(node) in state
            yield node.name, "state" if is_parameter else "tangent" if node.name.startswith("tangents_") else "input"


def _result_names(split: SplitGraph) -> Iterator[str]:
    """The names of the graph's results; of views, those of their bases."""
    for result in split.results:
        node = result.root if isinstance(result, ViewChain) else result
        if isinstance(node, fx.Node):
            yield node.name


def _first_writes(program: LoopProgram) -> dict[Buffer, int]:
    found: dict[Buffer, int] = {}
    for number, step in enumerate(program.steps):
        for each in written_by(step):
            found.setdefault(each, number)
    return found
