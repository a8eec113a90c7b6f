"""Operators on element types that they do not take, or that a runtime has no code for: computed in others.

Before: ``Softplus(bf16[3])`` in opset 20, which knows it for f16, f32 and f64 alone
After:  ``Cast(Softplus(Cast(bf16[3], to=f32)), to=bf16)``

Every value of the narrow type has one in the wide type, and the result is rounded as eager's kernels round it. Where a
runtime has no code for float64, nothing is wider: such operators compute in float32, to run a model at all.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import onnx
import onnx_ir as ir
from onnx_ir.schemas import OpSignature, Parameter, TypeConstraintParam

from precast.onnx.graphs import all_nodes, outermost_graphs
from precast.onnx.recorder import bind_types, output_types, type_from_attributes

_Type = ir.DataType
_Others = Mapping[ir.DataType, tuple[ir.DataType, ...]]
_NARROWER: _Others = {_Type.DOUBLE: (_Type.FLOAT,)}
_WIDER: dict[ir.DataType, tuple[ir.DataType, ...]] = {
    _Type.BFLOAT16: (_Type.FLOAT,),
    _Type.FLOAT16: (_Type.FLOAT,),
    _Type.INT8: (_Type.INT32, _Type.INT64),
    _Type.INT16: (_Type.INT32, _Type.INT64),
    _Type.INT32: (_Type.INT64,),
    # Shifts take unsigned numbers alone.
    _Type.UINT8: (_Type.INT32, _Type.INT64, _Type.UINT32, _Type.UINT64),
    _Type.UINT16: (_Type.INT32, _Type.INT64, _Type.UINT32, _Type.UINT64),
    _Type.UINT32: (_Type.INT64, _Type.UINT64),
}
_WIDER |= {kind: (_Type.FLOAT,) for kind in _Type if kind.name.startswith(("FLOAT8", "FLOAT4"))}
# Their element types are what they are about.
_KEEPS_TYPES = ("Cast", "CastLike", "Identity", "Constant", "If", "Loop", "Scan", "Shape", "Size")

Wants = Callable[[ir.Node, TypeConstraintParam, ir.DataType], bool]


def make_types_valid(graph: ir.Graph, opset: int) -> None:
    """Change ``graph`` in place: no operator gets a type that its definition in ``opset`` leaves out."""

    def is_left_out(_: ir.Node, variable: TypeConstraintParam, data_type: ir.DataType) -> bool:
        return data_type not in _allowed(variable)

    _widen(graph, opset, is_left_out, _WIDER)


def widened(model: ir.Model) -> ir.Model:
    """A copy that computes with the types for which every runtime has code, and rounds after each operator.

    New values in it have no names of their own yet.
    """

    def is_narrow(node: ir.Node, _: TypeConstraintParam, data_type: ir.DataType) -> bool:
        is_quantized = node.op_type.endswith(("Linear", "Integer"))
        return data_type in _WIDER and data_type != _Type.INT32 and not is_quantized

    return _copy_with(model, is_narrow)


def narrowed(model: ir.Model, operators: Collection[str]) -> ir.Model:
    """A copy in which these operators compute in float32 where they compute in float64."""

    def is_double(node: ir.Node, _: TypeConstraintParam, data_type: ir.DataType) -> bool:
        return data_type == _Type.DOUBLE and node.op_type in operators

    return _copy_with(model, is_double, _NARROWER)


def of_doubles(model: ir.Model, operator: str, known: Collection[str]) -> set[str]:
    """Operators beyond those ``known`` that a runtime cannot run because it has no code for ``operator`` in float64.

    It may be part of the definition of others: ``Gelu`` is computed by ``Erf``.
    """
    opset = model.opset_imports[""]
    nodes = [node for node in all_nodes(model) if any(v is not None and v.dtype == _Type.DOUBLE for v in node.inputs)]
    if operator not in known and any(node.op_type == operator for node in nodes):
        return {operator}
    return {node.op_type for node in nodes if _is_defined_by_others(node, opset)}.difference(known)


def _is_defined_by_others(node: ir.Node, opset: int) -> bool:
    if node.domain or not onnx.defs.has(node.op_type):
        return False
    schema: Any = onnx.defs.get_schema(node.op_type, opset)
    return bool(schema.has_function or schema.has_context_dependent_function)


def _copy_with(model: ir.Model, wants: Wants, others: _Others = _WIDER) -> ir.Model:
    copy = model.clone()
    for graph in outermost_graphs(copy):
        _widen(graph, copy.opset_imports[""], wants, others)
    return copy


def _widen(graph: ir.Graph, opset: int, wants: Wants, others: _Others) -> None:
    for node in list(graph):
        for attribute in node.attributes.values():
            for inner in _graphs(attribute):
                _widen(inner, opset, wants, others)
        signature = _signature(node, opset)
        if signature is None:
            continue
        inputs = list(_paired(signature, node))
        binding = bind_types(inputs)
        _tell_types(node, signature, binding)
        if node.op_type in _KEEPS_TYPES:
            continue
        chosen = {
            variable: wide
            for variable, data_type in binding.items()
            if wants(node, variable, data_type) and (wide := _allowed_among(others, variable, data_type)) is not None
        }
        if chosen:
            _rewrite(graph, node, signature, inputs, chosen)


def _graphs(attribute: ir.Attr) -> Iterable[ir.Graph]:
    if attribute.type is ir.AttributeType.GRAPH:
        return [attribute.value]
    return list(attribute.value) if attribute.type is ir.AttributeType.GRAPHS else []


def _signature(node: ir.Node, opset: int) -> OpSignature | None:
    if node.domain or not onnx.defs.has(node.op_type):
        return None
    try:
        return OpSignature.from_op_schema(onnx.defs.get_schema(node.op_type, opset))
    except onnx.defs.SchemaError:
        return None


def _paired(signature: OpSignature, node: ir.Node) -> Iterable[tuple[Parameter, ir.Value | None]]:
    """Each input with its parameter; the last one may take several."""
    parameters = list(signature.inputs)
    for number, value in enumerate(node.inputs):
        yield parameters[min(number, len(parameters) - 1)], value


def _tell_types(node: ir.Node, signature: OpSignature, binding: dict[TypeConstraintParam, ir.DataType]) -> None:
    """Note the element types of results that are not known: those of functions that were inlined."""
    inner = [graph for attribute in node.attributes.values() for graph in _graphs(attribute)]
    if inner:
        # The first result of a loop's body is whether to go on.
        types = [value.dtype for value in inner[0].outputs][1 if node.op_type == "Loop" else 0 :]
    else:
        types = output_types(signature, len(node.outputs), binding)
        declared = type_from_attributes(
            node.op_type, {name: attribute.value for name, attribute in node.attributes.items()}
        )
        types[:1] = [declared or types[0]] if types else []
    for value, data_type in zip(node.outputs, types, strict=False):
        if value.dtype is None and data_type is not None:
            value.type = ir.TensorType(data_type)


def _allowed(variable: TypeConstraintParam) -> set[ir.DataType]:
    return {kind.dtype for kind in variable.allowed_types}


def _allowed_among(others: _Others, variable: TypeConstraintParam, data_type: ir.DataType) -> ir.DataType | None:
    allowed = _allowed(variable)
    return next((other for other in others.get(data_type, ()) if other in allowed), None)


def _rewrite(
    graph: ir.Graph,
    node: ir.Node,
    signature: OpSignature,
    inputs: list[tuple[Parameter, ir.Value | None]],
    chosen: dict[TypeConstraintParam, ir.DataType],
) -> None:
    for number, (parameter, value) in enumerate(inputs):
        wide = chosen.get(parameter.type_constraint)
        if wide is not None and value is not None and value.dtype != wide:
            cast = _cast(value, wide)
            graph.insert_before(node, cast)
            node.replace_input_with(number, cast.outputs[0])
    parameters = list(signature.outputs)
    for number, value in enumerate(node.outputs):
        variable = parameters[min(number, len(parameters) - 1)].type_constraint
        if variable in chosen and value.dtype is not None:
            _round(graph, node, value, chosen[variable])


def _cast(value: ir.Value, data_type: ir.DataType) -> ir.Node:
    node = ir.node("Cast", [value], attributes={"to": int(data_type)})
    node.outputs[0].type, node.outputs[0].shape = ir.TensorType(data_type), value.shape
    return node


def _round(graph: ir.Graph, node: ir.Node, value: ir.Value, wide: ir.DataType) -> None:
    """Let everything that used a result use the result rounded, under its name."""
    assert value.dtype is not None, "asked before"
    cast = _cast(value, value.dtype)
    rounded = cast.outputs[0]
    ir.convenience.replace_all_uses_with(value, rounded, replace_graph_outputs=True)
    cast.replace_input_with(0, value)
    graph.insert_after(node, cast)
    rounded.name, value.name = value.name, None
    rounded.metadata_props.update(value.metadata_props)
    value.metadata_props.clear()
    # A type of its own: that of a copied model is the same object.
    value.type = ir.TensorType(wide)
