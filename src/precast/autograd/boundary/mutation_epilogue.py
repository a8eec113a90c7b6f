"""Writes the updated values of inputs, which the graph returns, back into the caller's tensors.

Before: ``inner([x]) -> [x_new, y]``
After:  ``outer([x]) -> [y]``, and ``x`` holds ``x_new``, with gradients flowing through the update where eager's do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from precast.autograd.boundary import FlatCall

if TYPE_CHECKING:
    from precast.autograd.boundary.traced_layout import TracedLayout
    from precast.ir.boundary import InputFacts

_is_inference = torch.Tensor.is_inference


@dataclass(frozen=True)
class Update:
    """One input that is updated: what happens to it, and where it lies afterwards if that changes."""

    number: int
    facts: InputFacts
    layout: TracedLayout | None = None


def apply_updates(inner: FlatCall, updates: Sequence[Update]) -> FlatCall:
    """Wrap ``inner``, whose first results are the updated inputs, so that it applies them.

    A result that is the input itself was written there: that is only to be told to autograd.
    """
    numbers = [update.number for update in updates]

    def call(inputs: Sequence[Any]) -> list[Any]:
        # The callee may empty its list of inputs.
        originals = list(inputs)
        _refuse_inference_tensors([originals[number] for number in numbers])
        results = inner(inputs)
        written = []
        for value, update in zip(results, updates, strict=False):
            if value is originals[update.number]:
                written.append(value)
            elif update.layout is None:
                _take_data(originals[update.number], value, update.facts)
            else:
                _take_shape(originals[update.number], value, update.facts, update.layout(originals, value))
        if written:
            torch.autograd.graph.increment_version(written)
        return results[len(updates) :]

    return call


def _refuse_inference_tensors(originals: Sequence[torch.Tensor]) -> None:
    """Raise torch's own error, before anything is written, for those that may not be written here."""
    if not torch.is_inference_mode_enabled():
        for original in filter(_is_inference, originals):
            original.copy_(original)


def _take_data(original: torch.Tensor, value: torch.Tensor, facts: InputFacts) -> None:
    if facts.replaces_storage:
        with torch.no_grad():
            original.set_(value)  # type: ignore[call-overload]
    elif facts.update_needs_gradient:
        original.copy_(value)
    else:
        with torch.no_grad():
            original.copy_(value)


def _take_shape(
    original: torch.Tensor, value: torch.Tensor, facts: InputFacts, layout: tuple[Sequence[int], Sequence[int], int]
) -> None:
    """Give the caller's tensor the new sizes and strides over its own memory, and the new data if that changed too."""
    size, stride, offset = layout
    start = original.storage_offset() + offset
    end = start + 1 + sum((length - 1) * step for length, step in zip(size, stride, strict=True))
    if value.numel() and end * value.element_size() > original.untyped_storage().nbytes():
        # The program made room (resize_): the caller's memory grows as eager's would.
        with torch.no_grad():
            original.resize_(size)
            original.copy_(value)
        return
    original.as_strided_(size, stride, start)
    if facts.mutates_data:
        original.copy_(value)
