"""Makes ``is_in_onnx_export()`` of torch's own exporter return True while a model is exported.

Models branch on that function. It reads flags in modules of torch that Precast never imports: they are found among
the loaded modules, set, and restored. If none is loaded, no model has called the function yet; the first call loads
one, and returns False. Then the model is captured again.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

_Result = TypeVar("_Result")

# The module that holds the flag, the object in it (if not the module itself), and the attribute.
_SWITCHES = (
    ("onnx._internal.exporter._flags", None, "_is_onnx_exporting"),
    ("onnx._internal.torchscript_exporter._globals", "GLOBALS", "in_onnx_export"),
)


@contextmanager
def exporting() -> Iterator[None]:
    """While active, models see that they are being exported."""
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
    """The result of a capture during which the model, if it asks, sees that it is being exported."""
    is_told = any(True for _ in _holders())
    try:
        with exporting():
            captured = capture()
    except Exception:
        # The wrong answer may have caused the error.
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
