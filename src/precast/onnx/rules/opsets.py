"""ONNX's operators as rules call them, and the constants that they need most.

Onnxscript types them for scripts that it compiles; rules are traced, and pass values and Python constants alike.
"""

from typing import Any

import onnx_ir as ir
import onnxscript

op: Any = onnxscript.opset18
op20: Any = onnxscript.opset20
op21: Any = onnxscript.opset21
op23: Any = onnxscript.opset23


def number(value: float, like: Any) -> Any:
    """A scalar of the element type of another value."""
    return op.Constant(value=ir.tensor(value, dtype=like.dtype))


def integer(value: int) -> Any:
    """A scalar of int64."""
    return op.Constant(value=ir.tensor(value, dtype=ir.DataType.INT64))


def integers(*values: int) -> Any:
    """A vector of int64."""
    return op.Constant(value_ints=list(values))
