"""Writes the updated values of inputs, which the graph returns, back into the caller's tensors.

Before: ``inner([x]) -> [x_new, y]``
After:  ``outer([x]) -> [y]``, and ``x`` holds ``x_new``, with gradients flowing through the update where eager's do.
"""

from collections.abc import Sequence
from typing import Any

import torch

from precast.autograd.boundary import FlatCall
from precast.ir.boundary import BoundaryFacts, InputFacts


def apply_updates(inner: FlatCall, facts: BoundaryFacts) -> FlatCall:
    """Wrap ``inner``, whose first results are the updated inputs, so that it applies them."""
    updates = [(number, facts.inputs[number]) for number in facts.updated]

    def call(inputs: Sequence[Any]) -> list[Any]:
        originals = [inputs[number] for number, _ in updates]
        results = inner(inputs)
        for original, value, (_, fact) in zip(originals, results, updates, strict=False):
            _apply(original, value, fact)
        return results[len(updates) :]

    return call


def _apply(original: torch.Tensor, value: torch.Tensor, facts: InputFacts) -> None:
    if facts.replaces_storage:
        with torch.no_grad():
            original.set_(value)  # type: ignore[call-overload]
    elif facts.mutates_metadata:
        _take_shape(original, value, facts)
    elif facts.update_needs_gradient:
        original.copy_(value)
    else:
        with torch.no_grad():
            original.copy_(value)


def _take_shape(original: torch.Tensor, value: torch.Tensor, facts: InputFacts) -> None:
    """Give the caller's tensor the new sizes and strides over its own memory, and the new data if that changed too."""
    needed = value.storage_offset() + sum(
        (size - 1) * stride for size, stride in zip(value.shape, value.stride(), strict=True)
    )
    if value.numel() and (needed + 1) * value.element_size() > original.untyped_storage().nbytes():
        # The program made room (resize_): the caller's memory grows as eager's would.
        with torch.no_grad():
            original.resize_(value.shape)
            original.copy_(value)
        return
    original.as_strided_(value.size(), value.stride(), value.storage_offset())
    if facts.mutates_data:
        original.copy_(value)
