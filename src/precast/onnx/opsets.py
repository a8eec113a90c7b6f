"""ONNX's operators as rules call them.

Onnxscript types them for scripts that it compiles; rules are traced, and pass values and Python constants alike.
"""

from typing import Any

import onnxscript

op: Any = onnxscript.opset18
op20: Any = onnxscript.opset20
op21: Any = onnxscript.opset21
op23: Any = onnxscript.opset23
