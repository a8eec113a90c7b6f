"""Control flow: ``cond`` becomes ``If``, ``while_loop`` becomes ``Loop``, ``scan`` and ``map`` become ``Scan``.

Before: ``cond(p, then_graph, else_graph, [x])``
After:  ``If(p, then_branch={y = Sin(x)}, else_branch={y = Cos(x)})``; branches refer to outer values by name

Regions that are compiled once (``invoke_subgraph``) become functions of the model.

Before: ``invoke_subgraph(block, "block", x, w); invoke_subgraph(block, "block", y, v)``
After:  ``precast.regions::block(x, w); precast.regions::block(y, v)``, and one definition of ``block``
"""

import itertools
import re
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import onnx_ir as ir
import onnx_ir.passes.common as passes
import torch
from torch import fx

from precast.errors import OnnxRuleError
from precast.graph.nodes import value_of
from precast.onnx.graphs import REGIONS, custom_domains
from precast.onnx.recorder import RecordedValue
from precast.onnx.rules.opsets import integers
from precast.onnx.rules.registry import operator_name, rule
from precast.onnx.translate import BASE_OPSET, GraphBuilder

_Function = TypeVar("_Function", bound=Callable[..., Any])


def control_flow(name: str) -> Callable[[_Function], _Function]:
    """Register a rule for an operator that only passes values on, complex ones too."""

    def register(function: _Function) -> _Function:
        return rule(name, is_complex=True)(rule(name)(function))

    return register


@control_flow("higher_order::cond")
def cond(
    builder: GraphBuilder, predicate: Any, then: fx.GraphModule, otherwise: fx.GraphModule, operands: Sequence[Any] = ()
) -> Any:
    branches = [_branch(builder, module, operands, name) for module, name in ((then, "then"), (otherwise, "else"))]
    if isinstance(predicate, bool):
        predicate = builder.recorder.constant(predicate, ir.DataType.BOOL)
    count = len(branches[0].outputs)
    return builder.recorder.call("If", predicate, outputs=count, then_branch=branches[0], else_branch=branches[1])


@control_flow("higher_order::while_loop")
def while_loop(
    builder: GraphBuilder,
    condition: fx.GraphModule,
    body: fx.GraphModule,
    carried: Sequence[Any],
    additional: Sequence[Any] = (),
) -> Any:
    start = [_as_value(builder, value) for value in carried]
    nodes, (goes_on,) = _inlined(builder, condition, [*start, *additional], "condition")
    builder.recorder.nodes += nodes
    step = RecordedValue(name=_name(builder, "step"), type=ir.TensorType(ir.DataType.INT64), shape=ir.Shape([]))
    went_on = RecordedValue(name=_name(builder, "went_on"), type=ir.TensorType(ir.DataType.BOOL), shape=ir.Shape([]))
    inputs = _inputs(builder, body, len(start), "carried")
    nodes, results = _inlined(builder, body, [*inputs, *additional], "body")
    more, (still_goes_on,) = _inlined(builder, condition, [*results, *additional], "next_condition")
    graph = _graph(builder, "body", [step, went_on, *inputs], [*nodes, *more], [still_goes_on, *results])
    return builder.recorder.call("Loop", None, goes_on, *start, outputs=len(start), body=graph)


@control_flow("higher_order::scan")
def scan(
    builder: GraphBuilder,
    combine: fx.GraphModule,
    start: Sequence[Any],
    sequences: Sequence[Any],
    additional: Sequence[Any] = (),
) -> Any:
    return _scan(builder, combine, start, sequences, additional)


@control_flow("higher_order::map_impl")
def map_over(
    builder: GraphBuilder, function: fx.GraphModule, sequences: Sequence[Any], additional: Sequence[Any] = ()
) -> Any:
    return _scan(builder, function, (), sequences, additional)


@control_flow("higher_order::wrap_with_set_grad_enabled")
def without_grad_mode(builder: GraphBuilder, enabled: bool, body: fx.GraphModule, *operands: Any) -> Any:
    nodes, results = _inlined(builder, body, operands, "region")
    builder.recorder.nodes += nodes
    return results


@control_flow("higher_order::invoke_subgraph")
def region(builder: GraphBuilder, body: fx.GraphModule, identifier: str | None, *operands: Any) -> Any:
    """A function of the model; regions of equal definitions share it."""
    inner = GraphBuilder(body, builder.rules, builder.sizes, outer=builder, is_function=True)
    placeholders = [node for node in body.graph.nodes if node.op == "placeholder"]
    inputs: list[ir.Value] = []
    for node, operand in zip(placeholders, operands, strict=True):
        inner.values[node] = operand
        if isinstance(operand, ir.Value):
            inner.values[node] = value = RecordedValue(name=node.name)
            inner.set_type(value, expected := value_of(node))
            if isinstance(expected, torch.Tensor):
                inner.read_sizes_off(value, expected)
            inputs.append(value)
    nodes = inner.run()
    graph = _graph(inner, "region", inputs, nodes, _results(inner))
    graph.opset_imports.update({"": BASE_OPSET, **custom_domains(graph)})
    function = _defined_once(builder, ir.Function(REGIONS, "", graph=graph, attributes=[]), inner, identifier)
    given = [operand for operand in operands if isinstance(operand, ir.Value)]
    results = builder.recorder.call(function.name, *given, outputs=len(function.outputs), domain=REGIONS)
    builder.recorder.nodes[-1].version = 1
    return results


def _defined_once(
    builder: GraphBuilder, function: ir.Function, inner: GraphBuilder, identifier: str | None
) -> ir.Function:
    """This function with a name, or the one of the same definition that the model has already."""
    passes.NameFixPass()(ir.Model(function.graph, ir_version=10))
    definition = ir.to_proto(function).SerializeToString(deterministic=True)
    if definition not in builder.regions:
        name = re.sub(r"\W", "_", identifier or "region")
        taken = {each.name for each in builder.regions.values()}
        function.name = next(free for n in itertools.count() if (free := f"{name}_{n}" if n else name) not in taken)
        builder.regions[definition] = function
        builder.uses += inner.uses
    return builder.regions[definition]


@rule("prims::_make_token")
def token(*_: Any) -> Any:
    """A token that orders effects may be any number: the only effects are checks, which are omitted."""
    return integers(0)


@rule("prims::_sink_tokens")
def end_of_effects(*_: Any) -> None:
    """Nothing reads the last token."""


@rule("higher_order::with_effects")
def effect(builder: GraphBuilder, token: Any, operator: Any, *operands: Any, **options: Any) -> Any:
    found = builder.rules.find(operator)
    if found is None or found.source != "precast":
        raise OnnxRuleError(
            f"{operator_name(operator)} has an effect, and no translation to ONNX.",
            why="ONNX models compute, and do nothing else",
            fix="Leave it out of the model.",
        )
    return token, found.function(*operands, **options)


def _scan(
    builder: GraphBuilder,
    body: fx.GraphModule,
    start: Sequence[Any],
    sequences: Sequence[Any],
    additional: Sequence[Any],
) -> Any:
    inputs = _inputs(builder, body, len(start) + len(sequences), "element")
    nodes, results = _inlined(builder, body, [*inputs, *additional], "body")
    graph = _graph(builder, "body", inputs, nodes, results)
    operands = [_as_value(builder, value) for value in (*start, *sequences)]
    return builder.recorder.call("Scan", *operands, outputs=len(results), body=graph, num_scan_inputs=len(sequences))


def _branch(builder: GraphBuilder, module: fx.GraphModule, operands: Sequence[Any], name: str) -> ir.Graph:
    nodes, results = _inlined(builder, module, operands, name)
    return _graph(builder, name, [], nodes, results)


def _inlined(
    builder: GraphBuilder, module: fx.GraphModule, operands: Sequence[Any], name: str
) -> tuple[list[ir.Node], list[Any]]:
    """Inline a subgraph called with these values; returns its results."""
    inner = GraphBuilder(module, builder.rules, builder.sizes, outer=builder, name=name)
    placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
    inner.values |= dict(zip(placeholders, operands, strict=True))
    return inner.run(), _results(inner)


def _results(inner: GraphBuilder) -> list[Any]:
    results: Any = inner.module.graph.output_node().args[0]
    results = results if isinstance(results, (list, tuple)) else [results]
    return [inner.result(result) for result in results]


def _inputs(builder: GraphBuilder, module: fx.GraphModule, count: int, name: str) -> list[ir.Value]:
    """Fresh values for the first placeholders of a subgraph."""
    placeholders = [node for node in module.graph.nodes if node.op == "placeholder"][:count]
    values: list[ir.Value] = []
    for number, node in enumerate(placeholders):
        values.append(RecordedValue(name=_name(builder, f"{name}_{number}")))
        builder.set_type(values[-1], value_of(node))
    return values


def _graph(
    builder: GraphBuilder, name: str, inputs: Sequence[ir.Value], nodes: list[ir.Node], results: Sequence[Any]
) -> ir.Graph:
    """A subgraph; its results must be distinct values defined in it."""
    outputs: list[ir.Value] = []
    made = {id(value) for node in nodes for value in node.outputs}
    for number, result in enumerate(results):
        if isinstance(result, ir.Value) and id(result) in made and result not in outputs:
            outputs.append(result)
            continue
        outputs.append(RecordedValue(name=_name(builder, f"{name}_result_{number}")))
        if isinstance(result, ir.Value):
            outputs[-1].type, outputs[-1].shape = result.type, result.shape
            nodes.append(ir.Node("", "Identity", [result], outputs=[outputs[-1]]))
        else:
            tensor = ir.tensor(result)
            outputs[-1].dtype, outputs[-1].shape = tensor.dtype, ir.Shape([])
            attribute = ir.AttrTensor("value", tensor)
            nodes.append(ir.Node("", "Constant", [], [attribute], outputs=[outputs[-1]]))
    return ir.Graph(inputs, outputs, nodes=nodes, name=_name(builder, name))


def _name(builder: GraphBuilder, name: str) -> str:
    return f"{builder.prefix}{builder.current}.{name}"


def _as_value(builder: GraphBuilder, value: Any) -> ir.Value:
    if isinstance(value, ir.Value):
        return value
    kinds = {bool: ir.DataType.BOOL, int: ir.DataType.INT64, float: ir.DataType.FLOAT}
    assert type(value) in kinds, f"a loop carries {value!r}"
    return builder.recorder.constant(value, kinds[type(value)])
