"""Element types on both sides: torch's dtypes and ONNX's data types.

Also type promotion: torch's operators accept operands of mixed dtypes, ONNX's do not.

Before: ``add(i64[2], f32[2])``
After:  ``Add(Cast(i64[2], to=f32), f32[2])``
"""

from typing import Any

import onnx_ir as ir
import torch
from torch import fx
from torch._ops import OpOverload

from precast.errors import OnnxTypeError
from precast.graph.nodes import has_value, value_of
from precast.graph.program import Program

_DATA_TYPES = {
    torch.bfloat16: ir.DataType.BFLOAT16,
    torch.bool: ir.DataType.BOOL,
    torch.float16: ir.DataType.FLOAT16,
    torch.float4_e2m1fn_x2: ir.DataType.FLOAT4E2M1,
    torch.float32: ir.DataType.FLOAT,
    torch.float64: ir.DataType.DOUBLE,
    torch.float8_e4m3fn: ir.DataType.FLOAT8E4M3FN,
    torch.float8_e4m3fnuz: ir.DataType.FLOAT8E4M3FNUZ,
    torch.float8_e5m2: ir.DataType.FLOAT8E5M2,
    torch.float8_e5m2fnuz: ir.DataType.FLOAT8E5M2FNUZ,
    torch.int16: ir.DataType.INT16,
    torch.int32: ir.DataType.INT32,
    torch.int64: ir.DataType.INT64,
    torch.int8: ir.DataType.INT8,
    torch.uint16: ir.DataType.UINT16,
    torch.uint32: ir.DataType.UINT32,
    torch.uint64: ir.DataType.UINT64,
    torch.uint8: ir.DataType.UINT8,
}
_DTYPES = {data_type: dtype for dtype, data_type in _DATA_TYPES.items()}


def data_type_of(dtype: torch.dtype, *, what: str, at: str | None = None) -> ir.DataType:
    """ONNX's type for torch's; ``what`` names the value in error messages.

    >>> data_type_of(torch.float32, what="x").name
    'FLOAT'
    """
    if dtype not in _DATA_TYPES:
        complex_advice = "Pass and return torch.view_as_real(x), and compute with complex tensors inside only."
        raise OnnxTypeError(
            f"{what} has the dtype {dtype}.",
            why="ONNX models have no values of that type",
            fix=complex_advice if dtype.is_complex else "Convert it to a dtype that ONNX has before exporting.",
            at=at,
        )
    return _DATA_TYPES[dtype]


def unpacked_shape(tensor: torch.Tensor) -> tuple[int | torch.SymInt, ...]:
    """The shape in numbers, where torch counts packed pairs of numbers in a byte."""
    if tensor.dtype is not torch.float4_e2m1fn_x2:
        return tuple(tensor.shape)
    return (*tensor.shape[:-1], tensor.shape[-1] * 2)


FLOAT4_SINCE = 23
"""The first opset with float4."""


def has_float4(program: Program) -> bool:
    """Whether a program has float4 values, which the default opset lacks."""
    values = [value_of(node) for node in program.module.graph.nodes if has_value(node)]
    return any(isinstance(value, torch.Tensor) and value.dtype is torch.float4_e2m1fn_x2 for value in values)


def real_data_type_of(dtype: torch.dtype, *, what: str, at: str | None = None) -> ir.DataType:
    """The type of a value inside the graph: complex numbers are represented as pairs of real ones."""
    return data_type_of(dtype.to_real() if dtype.is_complex else dtype, what=what, at=at)


def dtype_of(data_type: ir.DataType) -> torch.dtype:
    """Torch's type for ONNX's."""
    return _DTYPES[data_type]


_aten = torch.ops.aten
# Operands that are conditions or masks and keep their own type.
_UNTOUCHED = {
    _aten.where.self: (0,),
    _aten.where.Scalar: (0,),
    _aten.where.ScalarSelf: (0,),
    _aten.where.ScalarOther: (0,),
    _aten.masked_fill.Scalar: (1,),
    _aten.masked_fill.Tensor: (1,),
}
# Torchlib ignores the other operand's type when it makes constants of their numbers.
TYPED_NUMBERS = {_aten.where.ScalarOther, _aten.where.ScalarSelf, _aten.where.Scalar}
_NOT_PROMOTING = {_aten._to_copy.default, _aten.copy.default, _aten.clone.default, _aten.to.dtype, _aten.ldexp.Tensor}


# Sums and the like: integers and bools are accumulated in the result's dtype.
_ACCUMULATING = {_aten.cumsum, _aten.cumprod, _aten.sum, _aten.prod, _aten.mean, _aten.nansum}
# Their numbers are dimensions, or values to fill in: they do not take part in promotion.
_LIKE_THE_RESULT = _ACCUMULATING | {_aten.cat, _aten.stack, _aten.masked_fill}


# Aliases of elementwise operators, which torch does not mark as such.
_OTHER_NAMES = {
    _aten.true_divide, _aten.divide, _aten.floor_divide, _aten.multiply, _aten.subtract, _aten.greater,
    _aten.greater_equal, _aten.less, _aten.less_equal, _aten.not_equal, _aten.isclose, _aten.__and__, _aten.__or__,
    _aten.__xor__,
}  # fmt: skip


def operand_dtype(node: fx.Node) -> torch.dtype | None:
    """The dtype in which an elementwise operator computes, or ``None`` if operands are not converted."""
    target = node.target
    if not isinstance(target, OpOverload) or target in _NOT_PROMOTING or not is_elementwise(target):
        return None
    result = value_of(node)
    if target.overloadpacket in _LIKE_THE_RESULT and isinstance(result, torch.Tensor):
        return None if result.is_complex() else result.dtype
    operands = [_example(arg) for number, arg in enumerate(node.args) if number not in _UNTOUCHED.get(target, ())]
    operands = [operand for operand in operands if isinstance(operand, (torch.Tensor, int, float, bool, complex))]
    if not isinstance(result, torch.Tensor) or not operands:
        return None
    common = _common_dtype(operands)
    if common.is_complex:
        return None
    return common if result.dtype == torch.bool or result.dtype.is_complex else result.dtype


def keeps_dtype(node: fx.Node, position: int) -> bool:
    """Whether the operand at this position is a mask, which is never cast."""
    return isinstance(node.target, OpOverload) and position in _UNTOUCHED.get(node.target, ())


def is_elementwise(target: object) -> bool:
    """Whether an operator is elementwise after broadcasting and type promotion."""
    return isinstance(target, OpOverload) and (
        torch.Tag.pointwise in target.tags
        or target in (_aten.cat.default, _aten.stack.default)
        or target in TYPED_NUMBERS
        or target.overloadpacket in _ACCUMULATING | _OTHER_NAMES
    )


def _example(argument: Any) -> Any:
    """A value that promotes like the operand."""
    if isinstance(argument, (list, tuple)):
        tensors = [value for value in map(_example, argument) if isinstance(value, torch.Tensor)]
        return torch.empty((1,), dtype=_common_dtype(tensors), device="meta") if tensors else None
    value = value_of(argument) if isinstance(argument, fx.Node) and has_value(argument) else argument
    if isinstance(value, torch.Tensor):
        return torch.empty([1] * value.dim(), dtype=value.dtype, device="meta")
    plain = {torch.SymInt: 1, torch.SymFloat: 1.0, torch.SymBool: True}
    return plain.get(type(value), value)


def _common_dtype(operands: list[Any]) -> torch.dtype:
    return torch._prims_common.elementwise_dtypes(
        *operands, type_promotion_kind=torch._prims_common.ELEMENTWISE_TYPE_PROMOTION_KIND.DEFAULT
    )[1]
