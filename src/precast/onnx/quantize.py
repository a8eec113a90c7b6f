"""Quantizes the weights of matrix products and convolutions to 8 or 4 bits, a fourth or an eighth of the size.

Before: ``MatMul(x, weight: f32[64, 32])``
After:  ``MatMul(x, DequantizeLinear(weight: i8[64, 32], scale: f32[32], axis=1))``
Dynamic: ``q, s, z = DynamicQuantizeLinear(x); Mul(Cast(MatMulInteger(q, weight, z)), Mul(s, scale))``

Quantization is symmetric. 8 bits have one scale per output column, 4 bits one per block of 32 rows as well.
Convolutions have a scale per output channel, and with 4 bits per block of input channels.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import numpy as np
import onnx_ir as ir
import onnx_ir.passes.common as passes
import torch

from precast.errors import OnnxError, OptionError
from precast.onnx.optimize import make_names_unique, renumber
from precast.onnx.session import Session

Scheme = Literal["int8", "int4", "dynamic_int8"]
_SCHEMES = ("int8", "int4", "dynamic_int8")
_BLOCK = 32
_LEAST_BLOCK = 8
_INT4_OPSET = 21
_LEAST_ELEMENTS = 1024
"""Smaller weights are not worth a node."""

_Array = np.ndarray[Any, np.dtype[Any]]


def quantized_model(model: ir.Model, scheme: Scheme) -> ir.Model:
    """A copy of the model whose large weights of products are integers."""
    if scheme not in _SCHEMES:
        raise OptionError(
            f"There is no scheme {scheme!r}.", why="weights have 8 or 4 bits", fix=f"Pass one of {_SCHEMES}."
        )
    copy = model.clone()
    # Functions get their weights as operands.
    passes.InlinePass()(copy)
    if scheme == "int4" and copy.opset_imports[""] < _INT4_OPSET:
        renumber(copy, _INT4_OPSET)
    products = list(_products(copy, scheme))
    if not products:
        raise OnnxError(
            "The model has no weights to quantize.",
            why=f"no product or convolution has a float32 weight of {_LEAST_ELEMENTS} elements or more",
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
    """The largest difference between the float outputs of two models, relative to the original's root mean square."""
    worst = 0.0
    for actual, expected in zip(Session(model).run(inputs), Session(original).run(inputs), strict=True):
        if expected.is_floating_point() and expected.numel():
            size = expected.double().square().mean().sqrt().clamp(min=1e-12)
            worst = max(worst, float((actual.double() - expected.double()).square().mean().sqrt() / size))
    return worst


_CONVOLUTIONS = ("Conv", "ConvTranspose")


def _products(model: ir.Model, scheme: Scheme) -> Iterator[tuple[ir.Node, ir.Value]]:
    for node in model.graph:
        is_known = node.op_type in ("MatMul", "Gemm", *_CONVOLUTIONS) and node.domain == ""
        weight = node.inputs[1] if is_known else None
        if weight is None or weight.const_value is None or weight.name not in model.graph.initializers:
            continue
        shape, is_float = weight.const_value.shape.numpy(), weight.const_value.dtype == ir.DataType.FLOAT
        is_matrix = len(shape) == 2 or node.op_type in _CONVOLUTIONS
        if not is_float or not is_matrix or weight.const_value.size < _LEAST_ELEMENTS:
            continue
        if scheme == "dynamic_int8" and not _can_be_dynamic(node, shape):
            continue
        yield node, weight


def _can_be_dynamic(node: ir.Node, shape: Sequence[int]) -> bool:
    """ONNX has no transposed integer convolution, and onnxruntime only two-dimensional ones."""
    return len(shape) == 4 if node.op_type == "Conv" else node.op_type == "MatMul" or _is_plain(node)


def _is_plain(node: ir.Node) -> bool:
    """Whether a Gemm is only a product and a bias."""
    if node.op_type != "Gemm":
        return False
    scales = [node.attributes.get_float(name, 1.0) for name in ("alpha", "beta")]
    return scales == [1.0, 1.0] and not node.attributes.get_int("transA", 0)


def _summed(node: ir.Node) -> int:
    """1 if the weight has a row per output, as in a Gemm or a convolution; 0 if it has a column."""
    if node.op_type in _CONVOLUTIONS:
        return int(node.op_type == "Conv")
    return node.attributes.get_int("transB", 0) if node.op_type == "Gemm" else 0


def _make_weight_only(graph: ir.Graph, node: ir.Node, weight: ir.Value, scheme: Scheme) -> None:
    assert weight.const_value is not None, "it is an initializer"
    array = weight.const_value.numpy()
    # The dimension that is summed over, and that of the outputs.
    summed = _summed(node)
    block = math.gcd(array.shape[summed], _BLOCK)
    if scheme == "int4" and block >= _LEAST_BLOCK:
        numbers, scale = _rounded(array, summed, largest=7, block=block)
        attributes = {"axis": summed, "block_size": block}
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
    if node.op_type == "Gemm" and _summed(node):
        array = array.T
    is_convolution = node.op_type in _CONVOLUTIONS
    numbers, scale = _rounded(array, int(is_convolution), largest=127, block=None)
    # One number per output channel, along the second dimension of a convolution's result.
    spread = [1, -1, *[1] * (array.ndim - 2)] if is_convolution else [-1]
    scale = scale.reshape(spread)
    quantized = _initializer(graph, f"{weight.name}_quantized", numbers, ir.DataType.INT8)
    scales = _initializer(graph, f"{weight.name}_scale", scale, ir.DataType.FLOAT)
    rounding = ir.Node("", "DynamicQuantizeLinear", [node.inputs[0]], num_outputs=3)
    attributes = list(node.attributes.values()) if is_convolution else []
    kind = "ConvInteger" if is_convolution else "MatMulInteger"
    product = ir.Node("", kind, [rounding.outputs[0], quantized, rounding.outputs[2]], attributes)
    cast = ir.Node("", "Cast", product.outputs, ir.convenience.convert_attributes({"to": int(ir.DataType.FLOAT)}))
    both = ir.Node("", "Mul", [rounding.outputs[1], scales])
    result = ir.Node("", "Mul", [cast.outputs[0], both.outputs[0]])
    nodes = [rounding, product, cast, both, result]
    bias = node.inputs[2] if len(node.inputs) > 2 else None
    if bias is not None:
        if is_convolution:
            shape = _initializer(graph, f"{weight.name}_bias_shape", np.array(spread), ir.DataType.INT64)
            nodes.append(ir.Node("", "Reshape", [bias, shape]))
            bias = nodes[-1].outputs[0]
        result = ir.Node("", "Add", [result.outputs[0], bias])
        nodes.append(result)
    ir.convenience.replace_nodes_and_values(graph, node, [node], nodes, node.outputs, result.outputs)


def _rounded(array: _Array, summed: int, *, largest: int, block: int | None) -> tuple[_Array, _Array]:
    """Rounded integers and their scales: per output, or per block of each output."""
    if block is None:
        # All dimensions except the outputs'.
        others = tuple(axis for axis in range(array.ndim) if axis != 1 - summed)
        scale = np.abs(array).max(axis=others, keepdims=True) / largest
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
    """One weight, shared by all its uses."""
    if name not in graph.initializers:
        tensor = ir.tensor(array.astype(data_type.numpy()), dtype=data_type, name=name)
        value = ir.Value(name=name, const_value=tensor, type=ir.TensorType(data_type), shape=ir.Shape(array.shape))
        graph.register_initializer(value)
    return graph.initializers[name]
