"""Lets a model know that it is being exported: ``is_in_onnx_export()`` of torch's own exporter answers True.

Models branch on that function. It reads switches in modules of torch that Precast never imports: they are found among
the loaded modules, turned on, and put back as they were. Where none is loaded, nobody has asked so far; the first
question loads one, and is answered with no. Then the model is captured once more.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

_Result = TypeVar("_Result")

# The module that holds the switch, the object in it (the module itself where there is none), and the attribute.
_SWITCHES = (
    ("onnx._internal.exporter._flags", None, "_is_onnx_exporting"),
    ("onnx._internal.torchscript_exporter._globals", "GLOBALS", "in_onnx_export"),
)


@contextmanager
def exporting() -> Iterator[None]:
    """While active, models are told that they are being exported."""
    holders = list(_holders())
    before = [getattr(holder, attribute) for holder, attribute in holders]
    try:
        for holder, attribute in holders:
            setattr(holder, attribute, True)
        yield
    finally:
        for (holder, attribute), value in zip(holders, before, strict=True):
            setattr(holder, attribute, value)


def answered(capture: Callable[[], _Result]) -> _Result:
    """What a capture returns in which the model, if it asks, is told that it is being exported."""
    is_told = any(True for _ in _holders())
    try:
        with exporting():
            captured = capture()
    except Exception:
        # The other answer may have led it there.
        if is_told or not _was_asked():
            raise
    else:
        if is_told or not _was_asked():
            return captured
    with exporting():
        return capture()


def _was_asked() -> bool:
    return f"torch.{_SWITCHES[0][0]}" in sys.modules


def _holders() -> Iterator[tuple[Any, str]]:
    for place, name, attribute in _SWITCHES:
        module = sys.modules.get(f"torch.{place}")
        holder = module if name is None else getattr(module, name, None)
        if hasattr(holder, attribute):
            yield holder, attribute
