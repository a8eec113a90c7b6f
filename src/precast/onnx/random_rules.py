"""Random numbers that torchlib lacks."""

from typing import Any

import onnx_ir as ir

from precast.onnx.opsets import integer, integers, number, op
from precast.onnx.rules import rule


@rule("aten::randperm")
def permutation(n: Any, *, dtype: int = -1, **_: Any) -> Any:
    """The order that sorts random numbers."""
    count = op.Reshape(integer(n) if isinstance(n, int) else n, integers(-1))
    zeros = op.ConstantOfShape(count, value=ir.tensor([0.0], dtype=ir.DataType.DOUBLE))
    # In double precision two equal draws, which would favour the first, hardly come up.
    _, order = op.TopK(op.RandomUniformLike(zeros), count)
    return order if dtype in (-1, ir.DataType.INT64) else op.Cast(order, to=dtype)


@rule("aten::uniform")
def uniform(x: Any, start: float = 0.0, stop: float = 1.0, *, generator: Any = None, **ends: float) -> Any:
    low, high = ends.get("from", start), ends.get("to", stop)
    return op.RandomUniformLike(x, low=float(low), high=float(high))


@rule("aten::rrelu_with_noise_functional")
def leaky_relu_of_random_slope(
    x: Any, noise: Any, lower: float = 1 / 8, upper: float = 1 / 3, training: bool = False, generator: Any = None
) -> Any:
    slope = op.RandomUniformLike(x, low=float(lower), high=float(upper)) if training else number((lower + upper) / 2, x)
    return op.Where(op.Less(x, number(0.0, x)), op.Mul(x, slope), x), None


@rule("aten::empty_permuted")
def empty_permuted(size: Any, physical_layout: Any, *, dtype: int = -1, **_: Any) -> Any:
    """What is in it nobody may rely on: zeros."""
    data_type = ir.DataType.FLOAT if dtype == -1 else ir.DataType(dtype)
    return op.ConstantOfShape(size, value=ir.tensor([0], dtype=data_type))
