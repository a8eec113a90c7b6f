"""Finds inputs, or elements of one, that lie in the same memory and are written: a graph of values cannot show that."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch._ops import OpOverload
from torch.utils import _pytree as pytree

from precast.errors import CaptureError
from precast.graph.boundary import BoundaryFacts
from precast.ops.cost import size_hint
from precast.ops.facts import is_random, is_view
from precast.trace.provenance import innermost_users_line


def inputs_written_through_others(values: Sequence[object], boundary: BoundaryFacts) -> Iterator[tuple[int, int]]:
    """Pairs of an input that the program writes and another one that the write would change too."""
    for number in boundary.updated:
        for other, value in enumerate(values):
            if other != number and _may_overlap(values[number], value):
                yield number, other


# What writes all elements alike, eager does not refuse.
_FILLS = {torch.ops.aten.fill_, torch.ops.aten.zero_}
_EAGERS_REFUSAL = (
    "unsupported operation: more than one element of the written-to tensor refers to a single memory location. "
    "Please clone() the tensor before performing the operation."
)


class WritesOfSharedElements:
    """Refuses writes into tensors several elements of which are one place in memory, and into views of such."""

    def __init__(self) -> None:
        self._views: dict[int, torch.Tensor] = {}

    def check(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Look at a call of an operator before it is made."""
        written = _tensors(_written(func, args, kwargs)) if isinstance(func, OpOverload) else []
        if any(map(_is_expanded, written)) and func.overloadpacket not in _FILLS and not is_random(func):
            raise RuntimeError(_EAGERS_REFUSAL)
        if any(map(self._shares, written)):
            raise CaptureError(
                "The program writes into a tensor several elements of which are one place in memory.",
                why="a graph of values cannot show that a write of one element changes others",
                fix="Write into a tensor of its own memory: x.clone() instead of x.expand(…).",
                at=innermost_users_line(),
            )

    def note(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> None:
        """Look at a call that was made."""
        if isinstance(func, OpOverload) and is_view(func) and any(map(self._shares, _tensors((args, kwargs)))):
            self._views.update((id(each), each) for each in _tensors(result))

    def _shares(self, tensor: torch.Tensor) -> bool:
        return id(tensor) in self._views or _may_share_elements(tensor)


def _written(func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
    """The arguments whose data an operator writes."""
    schema = func._schema
    if not schema.is_mutable or torch.Tag.inplace_view in func.tags:
        return []
    given = {each.name: value for each, value in zip(schema.arguments, args, strict=False)} | dict(kwargs)
    written = (each.name for each in schema.arguments if each.alias_info is not None and each.alias_info.is_write)
    return [given.get(name) for name in written]


def _tensors(values: object) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(values) if isinstance(leaf, torch.Tensor)]


def _is_expanded(tensor: torch.Tensor) -> bool:
    if tensor.layout is not torch.strided or 0 in map(size_hint, tensor.shape):
        return False
    return any(size_hint(size) > 1 and stride == 0 for size, stride in zip(tensor.shape, tensor.stride(), strict=True))


def _may_share_elements(tensor: torch.Tensor) -> bool:
    """Whether several elements of a tensor may be one place in memory, as those of an expanded one are."""
    if tensor.layout is not torch.strided or 0 in map(size_hint, tensor.shape):
        return False
    steps = zip(map(size_hint, tensor.stride()), map(size_hint, tensor.shape), strict=True)
    reach = 0
    for stride, size in sorted((stride, size) for stride, size in steps if size > 1):
        if stride <= reach:
            return True
        reach += (size - 1) * stride
    return False


def _may_overlap(left: object, right: object) -> bool:
    """Whether two strided tensors share memory and reach into each other's part of it.

    Interleaved columns count as overlapping, though no element is in both.
    """
    if not isinstance(left, torch.Tensor) or not isinstance(right, torch.Tensor):
        return False
    if not (left.layout is right.layout is torch.strided):
        return False
    if left.untyped_storage()._cdata != right.untyped_storage()._cdata or 0 in (left.numel(), right.numel()):
        return False
    return bool(left.storage_offset() < _end(right) and right.storage_offset() < _end(left))


def _end(tensor: torch.Tensor) -> int | torch.SymInt:
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    return tensor.storage_offset() + sum((size - 1) * stride for size, stride in steps) + 1
