"""Recognizes what people write out by hand: layer normalization."""

import onnx_ir as ir


def fuse_patterns(model: ir.Model, *, opset: int) -> None:
    """Change ``model`` in place."""
