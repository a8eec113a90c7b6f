"""A value of the graph under construction, with the Python operators that torchlib's functions use on it."""

from typing import Any

import onnx_ir as ir

from precast.onnx.opsets import op

_FLOATING = {ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.FLOAT16, ir.DataType.BFLOAT16}


class RecordedValue(ir.Value):
    """``a + b`` on two of these records an ``Add`` node and gives its result."""

    @property
    def rank(self) -> int | None:
        return None if self.shape is None else len(self.shape)

    def __add__(self, other: Any) -> Any:
        return op.Add(self, other)

    def __radd__(self, other: Any) -> Any:
        return op.Add(other, self)

    def __sub__(self, other: Any) -> Any:
        return op.Sub(self, other)

    def __rsub__(self, other: Any) -> Any:
        return op.Sub(other, self)

    def __mul__(self, other: Any) -> Any:
        return op.Mul(self, other)

    def __rmul__(self, other: Any) -> Any:
        return op.Mul(other, self)

    def __truediv__(self, other: Any) -> Any:
        return op.Div(self, other)

    def __matmul__(self, other: Any) -> Any:
        return op.MatMul(self, other)

    def __pow__(self, other: Any) -> Any:
        return op.Pow(self, other)

    def __mod__(self, other: Any) -> Any:
        return op.Mod(self, other, fmod=1) if self.dtype in _FLOATING else op.Mod(self, other)

    def __neg__(self) -> Any:
        return op.Neg(self)

    def __and__(self, other: Any) -> Any:
        return op.And(self, other)

    def __rand__(self, other: Any) -> Any:
        return op.And(other, self)

    def __or__(self, other: Any) -> Any:
        return op.Or(self, other)

    def __lt__(self, other: Any) -> Any:
        return op.Less(self, other)

    def __le__(self, other: Any) -> Any:
        return op.LessOrEqual(self, other)

    def __gt__(self, other: Any) -> Any:
        return op.Greater(self, other)

    def __ge__(self, other: Any) -> Any:
        return op.GreaterOrEqual(self, other)
