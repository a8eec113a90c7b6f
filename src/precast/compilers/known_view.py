"""Takes the same views of tensors that lie the same call after call, in one step.

Before: ``root.reshape(…)``, ``transpose(…)``, …, each through torch, which finds out again how the result lies
After:  ``root.as_strided(…)``
"""

from typing import Any

import torch

_Layout = tuple[torch.Size, tuple[int, ...], int | torch.SymInt]


class KnownView:
    """One result of a program without dynamic sizes that is a view; what was seen of it last."""

    def __init__(self) -> None:
        self._seen: tuple[_Layout, _Layout] | None = None

    def of(self, source: Any) -> torch.Tensor | None:
        """The view of a tensor that lies as the last one did; nothing of others."""
        seen = self._seen
        if seen is None or not _is_plain(source) or _layout(source) != seen[0]:
            return None
        view: torch.Tensor = source.as_strided(*seen[1])
        return view

    def remember(self, source: Any, view: Any) -> None:
        """Nothing where it is no view after all, or one that reads other numbers from the same memory."""
        is_same_kind = _is_plain(source) and _is_plain(view) and source.dtype == view.dtype
        if is_same_kind and source.untyped_storage().data_ptr() == view.untyped_storage().data_ptr():
            self._seen = _layout(source), _layout(view)


def _is_plain(value: Any) -> bool:
    return type(value) is torch.Tensor and not (value.requires_grad or value.is_conj() or value.is_neg())


def _layout(tensor: torch.Tensor) -> _Layout:
    return tensor.shape, tensor.stride(), tensor.storage_offset()
