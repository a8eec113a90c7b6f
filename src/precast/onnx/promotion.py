"""Torch's operators take operands of mixed dtypes; ONNX's do not. What each operand must be cast to first.

Before: ``add(i64[2], f32[2])``
After:  ``Add(Cast(i64[2], to=f32), f32[2])``
"""

from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload

from precast.ir.node_meta import has_value, value_of

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
# Torchlib makes constants of their numbers without looking at the other operand.
TYPED_NUMBERS = {_aten.where.ScalarOther, _aten.where.ScalarSelf, _aten.where.Scalar}
_NOT_PROMOTING = {_aten._to_copy.default, _aten.copy.default, _aten.clone.default, _aten.to.dtype, _aten.ldexp.Tensor}


# Sums and the like: integers and booleans are added up in the result's dtype.
_ACCUMULATING = {_aten.cumsum, _aten.cumprod, _aten.sum, _aten.prod, _aten.mean, _aten.nansum}


# Other names of elementwise operators, which torch does not mark as such.
_OTHER_NAMES = {_aten.true_divide, _aten.divide, _aten.multiply, _aten.subtract, _aten.greater, _aten.less}


def operand_dtype(node: fx.Node) -> torch.dtype | None:
    """The dtype in which an elementwise operator computes, or ``None`` where operands stay as they are."""
    target = node.target
    if not isinstance(target, OpOverload) or target in _NOT_PROMOTING or not is_elementwise(target):
        return None
    result = value_of(node)
    if target.overloadpacket in _ACCUMULATING and isinstance(result, torch.Tensor):
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
    """Whether the operand at this position is a mask, never cast."""
    return isinstance(node.target, OpOverload) and position in _UNTOUCHED.get(node.target, ())


def is_elementwise(target: object) -> bool:
    """Whether an operator computes each element of its result from one of each operand, after promotion."""
    return isinstance(target, OpOverload) and (
        torch.Tag.pointwise in target.tags
        or target in (_aten.cat.default, _aten.stack.default)
        or target in TYPED_NUMBERS
        or target.overloadpacket in _ACCUMULATING | _OTHER_NAMES
    )


def _example(argument: Any) -> Any:
    """Something that promotes as the operand does."""
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
