"""Sizes, and splitting tensors.

Arithmetic on sizes: symbolic integers are int64 scalars, symbolic floats are float64 scalars.

Operators that split a tensor into several: ``Split`` nodes, whose results need no sequence value.
"""

from collections.abc import Sequence
from typing import Any

import onnx_ir as ir
from onnxscript.function_libs.torch_lib.ops import core

from precast.onnx.rules.opsets import op
from precast.onnx.rules.registry import rule

_INT, _FLOAT = ir.DataType.INT64, ir.DataType.DOUBLE


def _is_float(value: Any) -> bool:
    return value.dtype == _FLOAT if isinstance(value, ir.Value) else isinstance(value, float)


def _alike(x: Any, y: Any) -> tuple[Any, Any]:
    """Both as floats if one is."""
    if _is_float(x) or _is_float(y):
        return _as(x, _FLOAT), _as(y, _FLOAT)
    return x, y


def _as(x: Any, data_type: ir.DataType) -> Any:
    if not isinstance(x, ir.Value):
        return op.Constant(value=ir.tensor(x, dtype=data_type))
    return x if x.dtype == data_type else op.Cast(x, to=data_type)


@rule("operator::add")
def add(x: Any, y: Any) -> Any:
    return op.Add(*_alike(x, y))


@rule("operator::sub")
def sub(x: Any, y: Any) -> Any:
    return op.Sub(*_alike(x, y))


@rule("operator::mul")
def mul(x: Any, y: Any) -> Any:
    return op.Mul(*_alike(x, y))


@rule("operator::truediv", "torch::sym_truediv")
def truediv(x: Any, y: Any) -> Any:
    return op.Div(_as(x, _FLOAT), _as(y, _FLOAT))


@rule("operator::floordiv")
def floordiv(x: Any, y: Any) -> Any:
    x, y = _alike(x, y)
    if _is_float(x):
        return op.Floor(op.Div(x, y))
    # ONNX rounds towards zero, Python towards minus infinity; without the remainder the division is exact.
    return op.Div(op.Sub(x, op.Mod(x, y)), y)


@rule("operator::mod")
def mod(x: Any, y: Any) -> Any:
    return op.Mod(*_alike(x, y))


@rule("operator::neg")
def neg(x: Any) -> Any:
    return op.Neg(x)


@rule("operator::pow")
def power(x: Any, y: Any) -> Any:
    return op.Pow(*_alike(x, y))


@rule("operator::eq")
def equal(x: Any, y: Any) -> Any:
    return op.Equal(*_alike(x, y))


@rule("operator::ne")
def not_equal(x: Any, y: Any) -> Any:
    return op.Not(op.Equal(*_alike(x, y)))


@rule("operator::lt")
def less(x: Any, y: Any) -> Any:
    return op.Less(*_alike(x, y))


@rule("operator::le")
def less_or_equal(x: Any, y: Any) -> Any:
    return op.LessOrEqual(*_alike(x, y))


@rule("operator::gt")
def greater(x: Any, y: Any) -> Any:
    return op.Greater(*_alike(x, y))


@rule("operator::ge")
def greater_or_equal(x: Any, y: Any) -> Any:
    return op.GreaterOrEqual(*_alike(x, y))


@rule("operator::and_")
def both(x: Any, y: Any) -> Any:
    return op.And(x, y)


@rule("operator::or_")
def either(x: Any, y: Any) -> Any:
    return op.Or(x, y)


@rule("torch::sym_not")
def sym_not(x: Any) -> Any:
    return op.Not(x)


@rule("torch::sym_float")
def sym_float(x: Any) -> Any:
    return _as(x, _FLOAT)


@rule("torch::sym_int", "math::trunc")
def sym_int(x: Any) -> Any:
    return _as(x, _INT)


@rule("math::floor")
def floor(x: Any) -> Any:
    return op.Cast(op.Floor(_as(x, _FLOAT)), to=_INT)


@rule("math::ceil")
def ceil(x: Any) -> Any:
    return op.Cast(op.Ceil(_as(x, _FLOAT)), to=_INT)


@rule("torch::sym_max")
def sym_max(x: Any, y: Any) -> Any:
    return op.Max(*_alike(x, y))


@rule("torch::sym_min")
def sym_min(x: Any, y: Any) -> Any:
    return op.Min(*_alike(x, y))


@rule("torch::sym_ite")
def sym_ite(condition: Any, x: Any, y: Any) -> Any:
    return op.Where(condition, *_alike(x, y))


@rule("torch::sym_sum")
def sym_sum(terms: Sequence[Any]) -> Any:
    total = terms[0]
    for term in terms[1:]:
        total = add(total, term)
    return total


@rule("torch::_sym_sqrt", "torch::sym_sqrt")
def sym_sqrt(x: Any) -> Any:
    return op.Sqrt(_as(x, _FLOAT))


@rule("aten::sym_numel")
def sym_numel(x: Any) -> Any:
    return op.Size(x)


@rule("aten::sym_size.int")
def sym_size(x: Any, dim: int) -> Any:
    position = dim if dim >= 0 else dim + len(x.shape)
    return op.Squeeze(op.Shape(x, start=position, end=position + 1))


@rule("aten::sym_size.int", is_complex=True)
def sym_size_of_complex(x: Any, dim: int) -> Any:
    """Pairs have a dimension more, the last one."""
    return sym_size(x, dim if dim >= 0 else dim + len(x.shape) - 1)


@rule("aten::_local_scalar_dense", "aten::item")
def item(x: Any) -> Any:
    number = op.Reshape(x, op.Constant(value=ir.tensor([], dtype=_INT)))
    if x.dtype == ir.DataType.BOOL:
        return number
    return op.Cast(number, to=_FLOAT if x.dtype.is_floating_point() else _INT)


@rule("operator::getitem")
def item_of_sequence(sequence: Any, position: int) -> Any:
    """An item of a sequence value; items of tuples need no rule."""
    return op.SequenceAt(sequence, position)


def _split(x: Any, sizes: Sequence[Any], dim: int) -> tuple[Any, ...]:
    if len(sizes) == 1:
        return (op.Identity(x),)
    if all(isinstance(size, int) for size in sizes):
        lengths = op.Constant(value_ints=list(sizes))
    else:
        lengths = op.Concat(*[_as_vector(size) for size in sizes], axis=0)
    # Only one of the two may be in the file, but recording needs the number of results.
    results = op.Split(x, lengths, axis=dim, num_outputs=len(sizes))
    results[0].producer().attributes.pop("num_outputs")
    return tuple(results)


def _as_vector(size: Any) -> Any:
    return op.Reshape(size, [-1]) if isinstance(size, ir.Value) else op.Constant(value_ints=[size])


@rule("aten::split_with_sizes", "aten::split_with_sizes_copy")
def split_with_sizes(x: Any, sizes: Sequence[Any], dim: int = 0) -> Any:
    return _split(x, sizes, dim)


@rule("aten::split.Tensor", "aten::split_copy.Tensor")
def split(x: Any, size: Any, dim: int = 0) -> Any:
    total = x.shape[dim]
    if not isinstance(total, int) or not isinstance(size, int):
        return core.aten_split(x, size, dim)
    return _split(x, [min(size, total - start) for start in range(0, total, size)] or [0], dim)


@rule("aten::chunk")
def chunk(x: Any, chunks: int, dim: int = 0) -> Any:
    total = x.shape[dim]
    if not isinstance(total, int):
        return core.aten_chunk(x, chunks, dim)
    return split(x, max(1, -(-total // chunks)), dim)


@rule("aten::unbind.int", "aten::unbind_copy.int")
def unbind(x: Any, dim: int = 0) -> Any:
    total = x.shape[dim]
    if not isinstance(total, int):
        return core.aten_unbind(x, dim)
    return tuple(op.Squeeze(part, [dim]) for part in _split(x, [1] * total, dim)) if total else ()
