"""Runs a flat function once on fake inputs and records what it did as an ATen graph.

Before: ``f(flat inputs) -> flat outputs``, a Python callable.
After: a ``GraphModule`` with one placeholder per input and one flat tuple as its result.

What the stages hand to each other when it is a callable.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx, maybe_enable_thunkify

from precast.graph.nodes import set_value, value_of
from precast.graph.signature import ArgumentSpec, ConstantArgument, SymIntArgument, TensorArgument
from precast.trace.eager.empty_operands import whole_where_empty
from precast.trace.eager.fake_mode import dispatch_for
from precast.trace.eager.gradients import with_gradients_of_eager
from precast.trace.eager.operand_types import checking_decompositions
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

    Must run inside a ``tracing_session``. Tensors that are no inputs end up as ``get_attr`` nodes.
    """

    def flat(*values: Any) -> list[Any]:
        return list(function(*values))

    rules = with_gradients_of_eager(whole_where_empty(decompositions or {}))
    with mode, dispatch_for(inputs), recorded_provenance(dict(module_names or {})):
        module = make_fx(
            flat,
            decomposition_table=checking_decompositions(rules),
            pre_dispatch=pre_dispatch,
            _allow_non_fake_inputs=True,
            # A guard on data that only running gives is reported by ShapeEnv with the user's line.
            _error_on_data_dependent_ops=True,
        )(*inputs)
    _note_plain_inputs(module.graph, inputs)
    _note_missing_results(module)
    output = module.graph.output_node()
    output.args = (tuple(output.args[0]),)  # type: ignore[arg-type]
    link_nodes(module.graph)
    module.recompile()
    return module


def computing_sizes_when_used(function: FlatFunction) -> FlatFunction:
    """``function``, of which sizes are recorded where an operator takes them: most serve torch's own checks alone."""

    def run(*inputs: Any) -> Sequence[Any]:
        with maybe_enable_thunkify():
            return function(*inputs)

    return run


def _note_plain_inputs(graph: fx.Graph, inputs: Sequence[Any]) -> None:
    """Python values among the inputs are their own traced values; make_fx leaves their placeholders bare."""
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    for node, value in zip(placeholders, inputs, strict=True):
        if not isinstance(value, torch.Tensor):
            set_value(node, value)


def _note_missing_results(module: fx.GraphModule) -> None:
    """Ops that are called for what they do, as assertions are, give None; in branches of control flow, too."""
    graphs = [each.graph for each in module.modules() if isinstance(each, fx.GraphModule)]
    for node in (node for graph in graphs for node in graph.nodes):
        if isinstance(node.target, torch._ops.OpOverload) and not node.target._schema.returns:
            set_value(node, None)


def rename_placeholders(module: fx.GraphModule, names: Sequence[str]) -> fx.GraphModule:
    """A copy in which the placeholders have these names; an op that had one gets a numeric suffix instead."""
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
    """How a graph's result is known in a signature."""
    if not isinstance(result, fx.Node):
        return ConstantArgument(f"output_{position}", result)
    return TensorArgument(result.name) if isinstance(value_of(result), torch.Tensor) else SymIntArgument(result.name)
