"""What of a compiled graph is kept on disk: the key of its code, where its sizes are read, and its fallback steps.

Compiled graphs as data that tell all there is to know of them.

Before: ``CompiledGraph``, steps over nodes of an fx graph
After:  numbered values, names of operators, plain arguments; ``native_standalone`` makes a graph of it again
"""

from __future__ import annotations

import json
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload

from precast.artifact.constants import ConstantCodec, Kind
from precast.errors import ExportError
from precast.graph.constants import TORCH_CONSTANTS
from precast.graph.nodes import tensor_of, value_of
from precast.native.call import CompiledGraph, NativeStep, TorchStep
from precast.native.loops.buffers import Buffer
from precast.native.loops.expressions import index_from_json, index_to_json
from precast.native.loops.index import Index
from precast.native.loops.program import FallbackStep, LoopProgram, SizeSource, Slot
from precast.native.split import ViewChain
from precast.ops.own_operators import random_seed


@dataclass(frozen=True)
class StoredGraph:
    """Built code by its key, which libraries it needs, and what of each entry is called back: a program without
    kernels.

    `in_place` are, for each entry, the numbers of results that it does not return, but writes into inputs.
    """

    target: str
    key: str
    needs: tuple[str, ...]
    programs: tuple[LoopProgram, ...]
    in_place: tuple[tuple[int, ...], ...]

    def to_bytes(self) -> bytes:
        programs = [_program_data(program) for program in self.programs]
        code = {"target": self.target, "key": self.key, "needs": self.needs}
        return json.dumps({**code, "programs": programs, "in_place": self.in_place}).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> StoredGraph:
        content = json.loads(data)
        programs, in_place = map(_program, content["programs"]), map(tuple, content["in_place"])
        code = content["target"], content["key"], tuple(content["needs"])
        return cls(*code, tuple(programs), tuple(in_place))


def written_in_place(program: LoopProgram) -> tuple[int, ...]:
    """The numbers of the results that a fused program writes into inputs instead."""
    return tuple(number for number, result in enumerate(program.results) if result is None)


def called_back(program: LoopProgram) -> LoopProgram:
    """All that calling back needs to know of a program."""
    return LoopProgram(program.name, (), (), program.sizes, program.fallbacks)


def _program_data(program: LoopProgram) -> dict[str, Any]:
    sizes = [[source.symbol, source.position, source.dimension] for source in program.sizes]
    steps = [_step_data(step) for step in program.fallbacks]
    return {"name": program.name, "sizes": sizes, "steps": steps}


def _program(content: dict[str, Any]) -> LoopProgram:
    sizes = tuple(SizeSource(*source) for source in content["sizes"])
    return LoopProgram(content["name"], (), (), sizes, tuple(map(_step, content["steps"])))


_ARGUMENTS = ConstantCodec(
    {
        "slot": Kind((Slot,), attrgetter("position"), Slot, int),
        "index": Kind((Index,), index_to_json, index_from_json, list),
    }
)


def _step_data(step: FallbackStep) -> dict[str, Any]:
    return {
        "name": step.name,
        "operator": step.operator,
        "inputs": [buffer.dtype for buffer in step.inputs],
        "outputs": [buffer.dtype for buffer in step.outputs],
        "arguments": _ARGUMENTS.write(step.arguments),
        "keywords": [[name, _ARGUMENTS.write(value)] for name, value in step.keyword_arguments],
        "at": step.at,
    }


def _step(content: dict[str, Any]) -> FallbackStep:
    # Shapes come with each call; of a buffer, only the type of its elements is needed.
    inputs, outputs = (tuple(Buffer("", dtype, (), ()) for dtype in content[key]) for key in ("inputs", "outputs"))
    keywords = tuple((name, _ARGUMENTS.read(value)) for name, value in content["keywords"])
    arguments = _ARGUMENTS.read(content["arguments"])
    return FallbackStep(content["name"], content["operator"], inputs, outputs, arguments, keywords, at=content["at"])


_OPERATORS = ("aten", "prims", random_seed.namespace)
_RESHAPES = (torch.ops.aten.view.default, torch.ops.aten._unsafe_view.default)


class Untellable(Exception):  # noqa: N818
    """Something in a graph that data cannot tell."""


def graph_data(graph: CompiledGraph, stored: StoredGraph) -> bytes | None:
    """The graph as data; None if it has sizes or constants of its own, or calls what has no name."""
    if graph.constants or graph.initial_readers:
        return None
    try:
        numbers: dict[fx.Node, int] = {node: number for number, node in enumerate(graph.placeholders)}
        steps = [_told_step(each.step, each.dead, numbers) for each in graph.steps]
        results = [_told_result(result, numbers) for result in graph.split.results]
    except (Untellable, ExportError):
        return None
    content = {"stored": json.loads(stored.to_bytes()), "steps": steps, "results": results}
    return json.dumps(content).encode()


def _told_step(step: NativeStep | TorchStep, dead: Sequence[fx.Node], numbers: dict[fx.Node, int]) -> dict[str, Any]:
    if type(step) is NativeStep:
        if step.inputs.sizes or not all(isinstance(value_of(node), torch.Tensor) for node in step.inputs.nodes):
            raise Untellable
        inputs = [_number(node, numbers) for node in step.inputs.nodes]
        outputs = [numbers.setdefault(node, len(numbers)) for node in step.outputs]
        updated = [(numbers.setdefault(value, len(numbers)), numbers[source]) for value, source in step.updated]
        return {"inputs": inputs, "outputs": outputs, "updated": updated, "dead": [numbers[node] for node in dead]}
    if type(step) is not TorchStep or step.readers:
        raise Untellable
    calls = [_told_call(node, numbers) for node in step.nodes]
    return {"calls": calls, "dead": [numbers[node] for node in dead]}


def _told_call(node: fx.Node, numbers: dict[fx.Node, int]) -> dict[str, Any]:
    arguments, keywords = _told(node.args, numbers), _told(dict(node.kwargs), numbers)
    output = numbers.setdefault(node, len(numbers))
    return {"operator": _operator_name(node), "arguments": arguments, "keywords": keywords, "output": output}


def _operator_name(node: fx.Node) -> str:
    if node.target is operator.getitem:
        return "getitem"
    if not isinstance(node.target, OpOverload) or node.target.namespace not in _OPERATORS:
        raise Untellable
    return str(node.target)


def _number(node: fx.Node, numbers: dict[fx.Node, int]) -> int:
    if node not in numbers:
        raise Untellable
    return numbers[node]


def _told(value: object, numbers: dict[fx.Node, int]) -> Any:
    return TORCH_CONSTANTS.write(value, lambda each: str(_number(each, numbers)) if isinstance(each, fx.Node) else None)


def _told_result(result: object, numbers: dict[fx.Node, int]) -> dict[str, Any]:
    if isinstance(result, fx.Node):
        return {"value": _number(result, numbers)}
    if not isinstance(result, ViewChain):
        return {"constant": TORCH_CONSTANTS.write(result)}
    root = _number(result.root, numbers)
    return {"root": root, "views": [_told_view(view) for view in result.views]}


def _told_view(view: fx.Node) -> dict[str, Any]:
    if view.target in _RESHAPES:
        shape = list(tensor_of(view).shape)
        if not all(type(size) is int for size in shape):
            raise Untellable
        return {"shape": shape}
    source = view.args[0]
    assert isinstance(source, fx.Node), f"{view} is a view of nothing"
    return _told_call(view, {source: 0})
