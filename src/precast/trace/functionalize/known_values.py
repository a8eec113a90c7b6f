"""Tracks tensors of a trace whose values do not depend on inputs, and computes these values on demand.

Before: ``mask = arange(4)[:, None] >= arange(4)[None]``      a fake tensor: only its metadata is known
After:  ``known_value(mask)`` is the real tensor, computed on the CPU when it is first needed
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch._dispatch.python import no_python_dispatcher
from torch._ops import OpOverload
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

from precast.ops.facts import is_pure, is_random

LARGEST = 1 << 24
"""The number of elements of the largest tensor that is computed."""

_aten = torch.ops.aten
_MADE_OF_NUMBERS = {_aten.arange, _aten.eye, _aten.full, _aten.ones, _aten.scalar_tensor, _aten.zeros}
# They read only the metadata of their operand.
_MADE_LIKE_ANOTHER = {
    _aten.full_like, _aten.new_full, _aten.new_ones, _aten.new_zeros, _aten.ones_like, _aten.zeros_like,
}  # fmt: skip


class Journal:
    """Counts the writes into tensors with known values in one trace: a write invalidates all values known before."""

    def __init__(self) -> None:
        self.writes = 0

    def note(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        """Record at ``result`` how it was computed, if it was computed from known values."""
        if not isinstance(func, OpOverload):
            return
        tensors = [each for each in _leaves(args, kwargs) if isinstance(each, torch.Tensor)]
        if func._schema.is_mutable:
            self.writes += any(_origin(each) is not None for each in tensors)
            return
        if type(result) is not FunctionalTensor or not self._is_known(func, tensors):
            return
        if not any(isinstance(each, torch.SymInt | torch.SymFloat | torch.SymBool) for each in _leaves(args, kwargs)):
            vars(result)["_origin"] = _Origin(self, self.writes, func, args, kwargs)

    def _is_known(self, func: OpOverload, tensors: list[torch.Tensor]) -> bool:
        if func.overloadpacket in _MADE_OF_NUMBERS | _MADE_LIKE_ANOTHER:
            return True
        return (
            bool(tensors)
            and all(_origin(each) is not None for each in tensors)
            and is_pure(func)
            and not is_random(func)
            and torch.Tag.nondeterministic_seeded not in func.tags
        )


@dataclass
class _Origin:
    """The call that made a tensor, and the number of writes before it."""

    journal: Journal
    writes: int
    func: OpOverload
    args: Any
    kwargs: Any
    value: torch.Tensor | None = None

    @property
    def holds(self) -> bool:
        return self.writes == self.journal.writes


def known_value(tensor: torch.Tensor) -> torch.Tensor | None:
    """The value that ``tensor`` has in every call, on the CPU; None if it depends on inputs or is unknown."""
    origin = _origin(tensor)
    if origin is None or not _is_small(tensor):
        return None
    if origin.value is None:
        is_like_another = origin.func.overloadpacket in _MADE_LIKE_ANOTHER
        read: Callable[[torch.Tensor], torch.Tensor | None] = _stand_in if is_like_another else known_value

        def real(leaf: Any) -> Any:
            if isinstance(leaf, torch.device):
                return torch.device("cpu")
            return read(leaf) if isinstance(leaf, torch.Tensor) else leaf

        args, kwargs = pytree.tree_map(real, (origin.args, origin.kwargs or {}))
        were = [each for each in _leaves(origin.args, origin.kwargs) if isinstance(each, torch.Tensor)]
        if sum(isinstance(each, torch.Tensor) for each in _leaves(args, kwargs)) < len(were):
            return None
        with unrecorded():
            origin.value = origin.func(*args, **kwargs)
    return origin.value


@contextmanager
def unrecorded() -> Iterator[None]:
    """While active, operators on real tensors are computed and not recorded."""
    with _disable_current_modes(), no_python_dispatcher(), torch._C.DisableTorchFunction(), torch.no_grad():
        yield


def _stand_in(tensor: torch.Tensor) -> torch.Tensor | None:
    """A tensor of the same sizes and dtype with the memory of one element."""
    if any(isinstance(size, torch.SymInt) for size in tensor.shape):
        return None
    with unrecorded():
        return torch.empty((), dtype=tensor.dtype).expand(tensor.shape)


def _is_small(tensor: torch.Tensor) -> bool:
    sizes = [size for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if stride != 0]
    return all(isinstance(size, int) for size in tensor.shape) and torch.Size(sizes).numel() <= LARGEST


def _origin(tensor: torch.Tensor) -> _Origin | None:
    origin = vars(tensor).get("_origin") if type(tensor) is FunctionalTensor else None
    return origin if isinstance(origin, _Origin) and origin.holds else None


def _leaves(args: Any, kwargs: Any) -> Iterator[Any]:
    for each in (*args, *(kwargs or {}).values()):
        if isinstance(each, list | tuple):
            yield from each
        else:
            yield each
