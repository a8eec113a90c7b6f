"""The graphs of a report: nodes by module and line, the steps that they became, and the memory of these."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile

import torch
from torch import fx

from precast.graph.compilation import kind_of_graph
from precast.graph.nodes import (
    forward_node_of,
    has_value,
    module_path_of,
    placeholders_of,
    source_line_of,
    value_of,
)
from precast.graph.printer import target_name
from precast.graph.signature import Signature
from precast.graph.tensor_spec import describe
from precast.native.loops.printer import print_step
from precast.native.loops.program import KernelGroup, LoopProgram, Step, all_steps, parts_of, read_by, written_by
from precast.native.profile import TimedSegment
from precast.native.targets import StepTime
from precast.ops.cost import bytes_of, flops
from precast.ops.facts import Fact, facts_of
from precast.report import contents
from precast.report.lowered import LoweredGraph
from precast.report.memory_contents import MemoryWriter
from precast.report.recording import Texts, arguments_text
from precast.report.source_excerpts import SourceLines
from precast.report.step_costs import StepCost, cost_of_torch, costs_of, names_of

_KINDS = {"placeholder": "input", "get_attr": "constant", "output": "output", "call_function": "operator"}
_FEW_MEMBERS = 3
"""How many kernels of a group are shown."""


@dataclass(frozen=True)
class InputNames:
    """The user's names for the inputs of a graph, in order, and which of them are parameters and buffers."""

    tensors: tuple[str, ...] = ()
    state: frozenset[str] = frozenset()


class GraphWriter:
    """Converts the graphs of one report, over shared lines and texts."""

    def __init__(self, lines: SourceLines, texts: Texts) -> None:
        self._lines, self._texts = lines, texts
        self.modules: dict[str, str] = {}

    def graph(self, lowered: LoweredGraph, names: InputNames, saved: frozenset[str]) -> contents.Graph:
        """One graph; ``saved`` are results that are passed to another graph."""
        graph = lowered.split.module.graph
        numbers = {node: number for number, node in enumerate(graph.nodes)}
        labels = _labels(graph, names.tensors)
        steps, memory = _Steps(self, lowered, numbers), MemoryWriter(lowered, labels, names.state, saved)
        segments = zip(lowered.split.segments, lowered.segments(), strict=True)
        for number, (segment, timed) in enumerate(segments):
            if isinstance(timed.work, LoopProgram):
                memory.add(timed.work, segment.outputs, number, len(steps.found))
            steps.add(number, timed, memory)
        homes: dict[int, list[int]] = defaultdict(list)
        for number, step in enumerate(steps.found):
            for node in step.nodes:
                homes[node].append(number)
        nodes = [self._node(node, numbers, labels, tuple(homes[number])) for node, number in numbers.items()]
        return contents.Graph(
            lowered.name,
            kind_of_graph(lowered.name),
            tuple(nodes),
            tuple(steps.found),
            memory.buffers(len(steps.found)),
            tuple(memory.arenas),
        )

    def plain_graph(self, name: str, module: fx.GraphModule, signature: Signature) -> contents.Graph:
        """A program's graph, without steps; parameters have the names of the module's state."""
        numbers = {node: number for number, node in enumerate(module.graph.nodes)}
        targets = {spec.arg.name: spec.target for spec in signature.inputs if spec.target}
        labels = {node: targets[node.name] for node in numbers if node.name in targets}
        return contents.Graph(name, name, tuple(self._node(node, numbers, labels, ()) for node in numbers))

    def _node(
        self, node: fx.Node, numbers: Mapping[fx.Node, int], labels: Mapping[fx.Node, str], steps: tuple[int, ...]
    ) -> contents.Node:
        value = value_of(node) if has_value(node) else None
        is_operator = isinstance(node.target, torch._ops.OpOverload) and Fact.VIEW not in facts_of(node)
        return contents.Node(
            node.name,
            _KINDS.get(node.op, node.op),
            target_name(node.target) if node.op == "call_function" else "",
            describe(value) if has_value(node) else "",
            tuple(numbers[each] for each in node.all_input_nodes),
            arguments_text(node) if node.op in ("call_function", "output") else "",
            self._module(node),
            self._lines.number(source_line_of(node)),
            labels.get(node, ""),
            forward_node_of(node) or "",
            bytes_of(value),
            flops(node) if is_operator and has_value(node) else 0,
            steps,
        )

    def _module(self, node: fx.Node) -> str:
        stack = node.meta.get("nn_module_stack") or {}
        for path, kind in stack.values():
            name = kind if isinstance(kind, str) else kind.__qualname__
            self.modules.setdefault(path, name.rpartition(".")[2])
        return module_path_of(node)

    def text(self, lines: Sequence[str]) -> int:
        return self._texts.number("\n".join(lines))

    def line(self, node: fx.Node) -> int | None:
        return self._lines.number(source_line_of(node))


def _labels(graph: fx.Graph, names: Sequence[str]) -> dict[fx.Node, str]:
    """The user's names for inputs: training graphs number them, inference graphs have them in order."""
    inputs = placeholders_of(graph)
    numbered = {node: int(number) - 1 for node in inputs
                if (number := node.name.removeprefix("primals_")) != node.name and number.isdigit()}  # fmt: skip
    if not numbered and len(inputs) == len(names):
        numbered = dict(zip(inputs, range(len(inputs)), strict=True))
    return {node: names[place] for node, place in numbered.items() if place < len(names)}


class _Steps:
    def __init__(self, writer: GraphWriter, lowered: LoweredGraph, numbers: Mapping[fx.Node, int]) -> None:
        self._writer, self._lowered, self._numbers = writer, lowered, numbers
        self._nodes = {node.name: node for node in numbers}
        self._code = lowered.target.listing(lowered.entries)
        self.found: list[contents.Step] = []

    def add(self, segment: int, timed: TimedSegment, memory: MemoryWriter) -> None:
        graph, target, work = self._lowered.split.module.graph, self._lowered.target, timed.work
        if not isinstance(work, LoopProgram):
            (time,) = timed.times
            self.found.append(self._step(segment, cost_of_torch(work), work, time, None, None))
            return
        costs = costs_of(work.steps, graph, target)
        for step, cost, time in zip(work.steps, costs, timed.times, strict=True):
            nodes = [self._nodes[name] for name in names_of(step) if name in self._nodes]
            loops = self._writer.text(_loops_text(step))
            code = self._code_of(step)
            touched = memory.numbers(segment, read_by(step)), memory.numbers(segment, written_by(step))
            self.found.append(self._step(segment, cost, nodes, time, loops, code, touched))

    def _code_of(self, step: Step) -> int | None:
        inner = [each for part in parts_of(step) for each in all_steps(part.program)]
        texts = [self._code[each] for each in (*inner, step) if each in self._code]
        return self._writer.text(texts) if texts else None

    def _step(
        self,
        segment: int,
        cost: StepCost,
        nodes: Sequence[fx.Node],
        time: StepTime,
        loops: int | None,
        code: int | None,
        touched: tuple[tuple[int, ...], tuple[int, ...]] = ((), ()),
    ) -> contents.Step:
        lines = [line for node in nodes if (line := self._writer.line(node)) is not None]
        seconds = time.shortest / 1e9
        return contents.Step(
            cost.kind,
            cost.name,
            cost.operators,
            tuple(self._numbers[node] for node in nodes),
            tuple(dict.fromkeys(lines)),
            _common_module([module_path_of(node) for node in nodes]),
            segment,
            cost.moved,
            cost.flops,
            cost.times,
            loops,
            code,
            *touched,
            time.calls,
            seconds,
            time.total / time.calls / 1e9 if time.calls else 0.0,
        )


def _loops_text(step: Step) -> list[str]:
    lines = print_step(step)
    if not isinstance(step, KernelGroup) or len(step.members) <= _FEW_MEMBERS:
        return lines
    shown = [lines[0], *(f"  {line}" for each in step.members[:_FEW_MEMBERS] for line in print_step(each))]
    return [*shown, f"  … and {len(step.members) - _FEW_MEMBERS} more"]


def _common_module(paths: Sequence[str]) -> str:
    together = zip(*(path.split(".") for path in paths), strict=False)
    return ".".join(names[0] for names in takewhile(lambda names: len(set(names)) == 1, together))
