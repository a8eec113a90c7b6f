"""Programs as ONNX models, verified against the original in onnxruntime."""

from precast.lazy_names import naming_extras

with naming_extras("precast.onnx"):
    from precast.onnx.export_model import export
    from precast.onnx.program import ONNXProgram

__all__ = ["ONNXProgram", "export"]
