"""Programs as ONNX models, checked against the original in onnxruntime."""

from precast.onnx.export_model import export
from precast.onnx.program import ONNXProgram

__all__ = ["ONNXProgram", "export"]
