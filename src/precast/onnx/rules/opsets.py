"""ONNX's operators as rules call them, and their most frequent constants.

Onnxscript types them for compiled scripts; rules are traced, and pass both values and Python constants.
"""

from typing import Any

import onnx_ir as ir
import onnxscript

op: Any = onnxscript.opset18
op20: Any = onnxscript.opset20
op21: Any = onnxscript.opset21
op23: Any = onnxscript.opset23


def number(value: float, like: Any) -> Any:
    """A scalar of another value's element type."""
    return op.Constant(value=ir.tensor(value, dtype=like.dtype))


def integer(value: int) -> Any:
    """An int64 scalar."""
    return op.Constant(value=ir.tensor(value, dtype=ir.DataType.INT64))


def integers(*values: int) -> Any:
    """An int64 vector."""
    return op.Constant(value_ints=list(values))
