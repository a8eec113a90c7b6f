"""Weights of matrix products in 8 or 4 bits, which take a fourth or an eighth of the space.

Before: ``MatMul(x, weight: f32[64, 32])``
After:  ``MatMul(x, DequantizeLinear(weight: i8[64, 32], scale: f32[32], axis=1))``
Dynamic: ``q, s, z = DynamicQuantizeLinear(x); Mul(Cast(MatMulInteger(q, weight, z)), Mul(s, scale))``

Weights are symmetric around zero. 8 bits have one scale for each column of results, 4 bits one for each 32 rows too.
"""

from collections.abc import Iterator
from typing import Any, Literal

import numpy as np
import onnx_ir as ir
import torch

from precast.errors import OnnxError, OptionError
from precast.onnx.optimize import make_names_unique, renumber
from precast.onnx.session import Session

Scheme = Literal["int8", "int4", "dynamic_int8"]
_SCHEMES = ("int8", "int4", "dynamic_int8")
_BLOCK = 32
_INT4_OPSET = 21
_LEAST_ELEMENTS = 1024
"""Smaller weights are not worth a node."""

_Array = np.ndarray[Any, np.dtype[Any]]


def quantized_model(model: ir.Model, scheme: Scheme) -> ir.Model:
    """A copy of the model whose large weights of products are whole numbers."""
    if scheme not in _SCHEMES:
        raise OptionError(
            f"The scheme is {scheme!r}.", why="weights are quantized by one of a few", fix=f"Pass one of {_SCHEMES}."
        )
    copy = model.clone()
    if scheme == "int4" and copy.opset_imports[""] < _INT4_OPSET:
        renumber(copy, _INT4_OPSET)
    products = list(_products(copy, scheme))
    if not products:
        raise OnnxError(
            "The model has no weights to quantize.",
            why=f"no matrix product has a float32 weight of {_LEAST_ELEMENTS} elements or more",
            fix="Export it as it is.",
        )
    for node, weight in products:
        if scheme == "dynamic_int8":
            _make_dynamic(copy.graph, node, weight)
        else:
            _make_weight_only(copy.graph, node, weight, scheme)
    for name in [name for name, value in copy.graph.initializers.items() if not value.uses()]:
        copy.graph.initializers.pop(name)
    for number, node in enumerate(copy.graph):
        for position, value in enumerate(node.outputs):
            value.name = value.name or f"quantized_{number}_{position}"
    make_names_unique(copy)
    return copy


def relative_error(model: ir.Model, original: ir.Model, inputs: list[torch.Tensor]) -> float:
    """How far apart the float results of two models are, of the original's root mean square, in the worst output."""
    worst = 0.0
    for actual, expected in zip(Session(model).run(inputs), Session(original).run(inputs), strict=True):
        if expected.is_floating_point() and expected.numel():
            size = expected.double().square().mean().sqrt().clamp(min=1e-12)
            worst = max(worst, float((actual.double() - expected.double()).square().mean().sqrt() / size))
    return worst


def _products(model: ir.Model, scheme: Scheme) -> Iterator[tuple[ir.Node, ir.Value]]:
    for node in model.graph:
        weight = node.inputs[1] if node.op_type in ("MatMul", "Gemm") and node.domain == "" else None
        if weight is None or weight.const_value is None or weight.name not in model.graph.initializers:
            continue
        shape, is_float = weight.const_value.shape.numpy(), weight.const_value.dtype == ir.DataType.FLOAT
        if not is_float or len(shape) != 2 or weight.const_value.size < _LEAST_ELEMENTS:
            continue
        if node.op_type == "Gemm" and scheme == "dynamic_int8" and not _is_plain(node):
            continue
        yield node, weight


def _is_plain(node: ir.Node) -> bool:
    """Whether a Gemm is a product and a bias, and no more."""
    scales = [node.attributes.get_float(name, 1.0) for name in ("alpha", "beta")]
    return scales == [1.0, 1.0] and not node.attributes.get_int("transA", 0)


def _is_transposed(node: ir.Node) -> int:
    """1 where the weight has a row for each result, as in a Gemm; 0 where it has a column."""
    return node.attributes.get_int("transB", 0) if node.op_type == "Gemm" else 0


def _make_weight_only(graph: ir.Graph, node: ir.Node, weight: ir.Value, scheme: Scheme) -> None:
    assert weight.const_value is not None, "it is an initializer"
    array = weight.const_value.numpy()
    # The dimension that is summed over, and the one of the results.
    summed = _is_transposed(node)
    if scheme == "int4" and array.shape[summed] % _BLOCK == 0:
        numbers, scale = _rounded(array, summed, largest=7, block=_BLOCK)
        attributes = {"axis": summed, "block_size": _BLOCK}
    else:
        numbers, scale = _rounded(array, summed, largest=7 if scheme == "int4" else 127, block=None)
        attributes = {"axis": 1 - summed}
    data_type = ir.DataType.INT4 if scheme == "int4" else ir.DataType.INT8
    made = ir.Node(
        "",
        "DequantizeLinear",
        [
            _initializer(graph, f"{weight.name}_quantized", numbers, data_type),
            _initializer(graph, f"{weight.name}_scale", scale, ir.DataType.FLOAT),
        ],
        ir.convenience.convert_attributes(attributes),
        num_outputs=1,
    )
    made.outputs[0].type, made.outputs[0].shape = weight.type, weight.shape
    graph.insert_before(node, made)
    node.replace_input_with(1, made.outputs[0])


def _make_dynamic(graph: ir.Graph, node: ir.Node, weight: ir.Value) -> None:
    assert weight.const_value is not None, "it is an initializer"
    array = weight.const_value.numpy()
    if _is_transposed(node):
        array = array.T
    numbers, scale = _rounded(array, 0, largest=127, block=None)
    quantized = _initializer(graph, f"{weight.name}_quantized", numbers, ir.DataType.INT8)
    scales = _initializer(graph, f"{weight.name}_scale", scale, ir.DataType.FLOAT)
    rounding = ir.Node("", "DynamicQuantizeLinear", [node.inputs[0]], num_outputs=3)
    product = ir.Node("", "MatMulInteger", [rounding.outputs[0], quantized, rounding.outputs[2]])
    cast = ir.Node("", "Cast", product.outputs, ir.convenience.convert_attributes({"to": int(ir.DataType.FLOAT)}))
    both = ir.Node("", "Mul", [rounding.outputs[1], scales])
    result = ir.Node("", "Mul", [cast.outputs[0], both.outputs[0]])
    nodes = [rounding, product, cast, both, result]
    if node.op_type == "Gemm" and len(node.inputs) > 2 and node.inputs[2] is not None:
        result = ir.Node("", "Add", [result.outputs[0], node.inputs[2]])
        nodes.append(result)
    ir.convenience.replace_nodes_and_values(graph, node, [node], nodes, node.outputs, result.outputs)


def _rounded(array: _Array, summed: int, *, largest: int, block: int | None) -> tuple[_Array, _Array]:
    """The nearest whole numbers, and what to multiply them with: for each result, or each block of each result."""
    if block is None:
        scale = np.abs(array).max(axis=summed, keepdims=True) / largest
        spread = scale
    else:
        shape = list(array.shape)
        shape[summed : summed + 1] = [array.shape[summed] // block, block]
        scale = np.abs(array.reshape(shape)).max(axis=summed + 1) / largest
        spread = np.repeat(scale, block, axis=summed)
    safe = np.where(spread == 0, 1, spread)
    numbers = np.clip(np.rint(array / safe), -largest, largest).astype(np.int8)
    return numbers, (scale.reshape(-1) if block is None else scale).astype(np.float32)


def _initializer(graph: ir.Graph, name: str, array: _Array, data_type: ir.DataType) -> ir.Value:
    """One weight serves all its uses."""
    if name not in graph.initializers:
        tensor = ir.tensor(array.astype(data_type.numpy()), dtype=data_type, name=name)
        value = ir.Value(name=name, const_value=tensor, type=ir.TensorType(data_type), shape=ir.Shape(array.shape))
        graph.register_initializer(value)
    return graph.initializers[name]
