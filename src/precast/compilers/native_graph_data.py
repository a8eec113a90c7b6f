"""Compiled graphs as data that tell all there is to know of them.

Before: ``CompiledGraph``, steps over nodes of an fx graph
After:  numbered values, names of operators, plain arguments; ``native_standalone`` makes a graph of it again
"""

from __future__ import annotations

import json
import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload

from precast.compilers.native_call import CompiledGraph, NativeStep, TorchStep
from precast.compilers.native_split import ViewChain
from precast.compilers.native_stored import StoredGraph
from precast.ir.node_meta import tensor_of, value_of
from precast.ops.random import random_seed

_PLAIN = (type(None), bool, int, float, str)
_TORCH_NAMES = (torch.dtype, torch.layout, torch.memory_format)
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
    except Untellable:
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
    if isinstance(value, fx.Node):
        return {"value": _number(value, numbers)}
    if type(value) in _PLAIN:
        return value
    if isinstance(value, tuple | list):
        return [_told(item, numbers) for item in value]
    if isinstance(value, dict):
        return {"items": [[key, _told(item, numbers)] for key, item in value.items()]}
    if isinstance(value, _TORCH_NAMES):
        return {"torch": str(value).removeprefix("torch.")}
    if isinstance(value, torch.device):
        return {"device": str(value)}
    raise Untellable


def _told_result(result: object, numbers: dict[fx.Node, int]) -> dict[str, Any]:
    if isinstance(result, fx.Node):
        return {"value": _number(result, numbers)}
    if not isinstance(result, ViewChain):
        if type(result) not in _PLAIN:
            raise Untellable
        return {"constant": result}
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
