"""Runs a flat function once on fake inputs and records what it does as an ATen graph.

Before: ``f(flat inputs) -> flat outputs``, a Python callable.
After: a ``GraphModule`` with one placeholder per input and one flat tuple as its result.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode, is_fake
from torch.fx.experimental.proxy_tensor import make_fx, maybe_enable_thunkify

from precast.errors import CaptureError
from precast.graph.nodes import set_value, value_of
from precast.graph.signature import ArgumentSpec, ConstantArgument, value_argument
from precast.trace.eager.empty_operands import whole_where_empty
from precast.trace.eager.fake_mode import dispatch_for
from precast.trace.eager.gradients import with_gradients_of_eager
from precast.trace.eager.operand_types import checking_decompositions
from precast.trace.eager.symbolic_numbers import whole_powers_of_any_float
from precast.trace.provenance import link_nodes, recorded_provenance

FlatFunction = Callable[..., Sequence[Any]]
"""Takes flat positional inputs, returns a flat sequence of outputs."""


Decompositions = Mapping[torch._ops.OpOverload, Callable[..., Any]]


def trace(
    function: FlatFunction,
    inputs: Sequence[Any],
    mode: FakeTensorMode,
    *,
    decompositions: Decompositions | None = None,
    pre_dispatch: bool = False,
    module_names: Mapping[int, str] | None = None,
) -> fx.GraphModule:
    """Record ``function`` on fake ``inputs``; the graph's nodes carry values and provenance.

    Must run inside a ``tracing_session``. Tensors that are not inputs become ``get_attr`` nodes.
    """

    def flat(*values: Any) -> tuple[Any, ...]:
        return tuple(function(*values))

    rules = with_gradients_of_eager(whole_where_empty(decompositions or {}))
    with mode, dispatch_for(inputs), whole_powers_of_any_float(), recorded_provenance(dict(module_names or {})):
        module = make_fx(
            flat,
            decomposition_table=checking_decompositions(rules),
            pre_dispatch=pre_dispatch,
            _allow_non_fake_inputs=True,
            # For a guard on a data-dependent value, ShapeEnv raises an error with the user's line.
            _error_on_data_dependent_ops=True,
        )(*inputs)
    if not pre_dispatch:
        # From before autograd, gradients taken inside lose values too; capture then records from below autograd.
        _refuse_lost_values(module)
    _note_plain_inputs(module.graph, inputs)
    _note_missing_results(module)
    link_nodes(module.graph)
    return module


def _refuse_lost_values(module: fx.GraphModule) -> None:
    """A constant of the graph that is a fake tensor is the result of operators that were not recorded."""
    if any(map(is_fake, module.buffers())):
        raise CaptureError(
            "The program computes a tensor in a way that is not recorded.",
            why="something in it traces or dispatches by itself, as torch.func.linearize and make_fx do",
            fix="Call that outside of what is compiled, or use another way, such as torch.func.jvp for linearize.",
        )


def computing_sizes_when_used(function: FlatFunction) -> FlatFunction:
    """``function`` with size arithmetic recorded only if an operator uses it: most of it serves torch's own checks."""

    def run(*inputs: Any) -> Sequence[Any]:
        with maybe_enable_thunkify():
            return function(*inputs)

    return run


def _note_plain_inputs(graph: fx.Graph, inputs: Sequence[Any]) -> None:
    """Set the values of placeholders for Python values; make_fx leaves them without."""
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    for node, value in zip(placeholders, inputs, strict=True):
        if not isinstance(value, torch.Tensor):
            set_value(node, value)


def _note_missing_results(module: fx.GraphModule) -> None:
    """Set the value of ops without results, such as assertions, to None; in branches of control flow, too."""
    graphs = [each.graph for each in module.modules() if isinstance(each, fx.GraphModule)]
    for node in (node for graph in graphs for node in graph.nodes):
        if isinstance(node.target, torch._ops.OpOverload) and not node.target._schema.returns:
            set_value(node, None)


def rename_placeholders(module: fx.GraphModule, names: Sequence[str]) -> fx.GraphModule:
    """A copy in which the placeholders have these names; an op whose name clashes gets a numeric suffix."""
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
    for node, name in zip(placeholders, names, strict=True):
        copies[node] = graph.placeholder(name)
        copies[node].meta = dict(node.meta)
    for node in module.graph.nodes:
        if node not in copies:
            copies[node] = graph.node_copy(node, copies.__getitem__)
    return fx.GraphModule(module, graph, type(module).__name__)


def argument_spec(result: object, position: int) -> ArgumentSpec:
    """The argument spec of a graph's result."""
    if not isinstance(result, fx.Node):
        return ConstantArgument(f"output_{position}", result)
    return value_argument(result.name, value_of(result))
