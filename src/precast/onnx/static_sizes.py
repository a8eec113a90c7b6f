"""Sizes that a rule must know when the model is written."""

from typing import Any

from precast.errors import OnnxError


def static_size(x: Any, axis: int, what: str) -> int:
    """The size along an axis; where it may change, an error says that ``what`` needs it."""
    size = x.shape[axis] if x.shape is not None else None
    if not isinstance(size, int):
        raise OnnxError(
            f"{what} needs a fixed size.",
            why=f"the size {size} may change, and ONNX has no operator for this that follows it",
            fix="Keep that dimension static.",
        )
    return size


def static_shape(x: Any, what: str) -> list[int]:
    """All sizes of a value."""
    return [static_size(x, axis, what) for axis in range(len(x.shape))]
