"""Finds writes into inputs, or elements of one input, that share memory: a functional graph cannot express them."""

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
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
    """Pairs of an input that the program writes and another input that the write may change, too."""
    for number in boundary.updated:
        for other, value in enumerate(values):
            if other != number and _may_overlap(values[number], value):
                yield number, other


# Eager allows operators that write the same value to all elements.
_FILLS = {torch.ops.aten.fill_, torch.ops.aten.zero_}
_EAGERS_REFUSAL = (
    "unsupported operation: {} a single memory location. Please clone() the tensor before performing the operation."
)
_SHARED = _EAGERS_REFUSAL.format("more than one element of the written-to tensor refers to")
_OVERLAPPING = _EAGERS_REFUSAL.format("some elements of the input tensor and the written-to tensor refer to")
_aten = torch.ops.aten
# Eager refuses these if the output partially overlaps an input; other such operators have the tag pointwise.
_PARTLY = {
    _aten.copy_, _aten.cumsum, _aten.eq_, _aten.ge_, _aten.gelu, _aten.gt_, _aten.heaviside_, _aten.le_, _aten.lt_,
    _aten.ne_, _aten.renorm, _aten.where,
}  # fmt: skip
# Eager refuses these if the output overlaps an input at all.
_AT_ALL = {
    _aten.index_put_, _aten.index_add_, _aten.index_copy_, _aten.index_reduce_, _aten.put_, _aten.scatter_,
    _aten.scatter_add_, _aten.scatter_reduce_,
}  # fmt: skip


class WritesOfSharedElements:
    """Refuses writes into tensors of which several elements share one memory location, and into views of these."""

    def __init__(self) -> None:
        self._views: dict[int, torch.Tensor] = {}

    def check(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Check a call of an operator before it is made."""
        written = _tensors(_written(func, args, kwargs)) if isinstance(func, OpOverload) else []
        if any(map(_is_expanded, written)) and func.overloadpacket not in _FILLS and not is_random(func):
            raise RuntimeError(_SHARED)
        if written and _overlaps_as_refused(func, written, args):
            raise RuntimeError(_OVERLAPPING)
        if any(map(self._shares, written)):
            raise CaptureError(
                "The program writes into a tensor of which several elements are one place in memory.",
                why="a graph of values cannot show that a write of one element changes others",
                fix="Write into a tensor of its own memory: x.clone() instead of x.expand(…).",
                at=innermost_users_line(),
            )

    def note(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> None:
        """Record the views that a call returned."""
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


def _overlaps_as_refused(func: OpOverload, written: Sequence[torch.Tensor], args: Sequence[Any]) -> bool:
    """Whether eager refuses a call because its output overlaps an input."""
    if func.overloadpacket in _AT_ALL:
        return any(_are_blocks_that_meet(written[0], source) for source in _tensors(args[1:]))
    if func.overloadpacket not in _PARTLY and torch.Tag.pointwise not in func.tags:
        return False
    pairs = product(written, _tensors(args))
    return any(_are_blocks_that_meet(*pair) and len(set(map(_place, pair))) > 1 for pair in pairs)


def _are_blocks_that_meet(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Whether both are dense blocks of memory that overlap: eager checks only such tensors."""
    if not (left.layout is right.layout is torch.strided):
        return False
    if left.untyped_storage()._cdata != right.untyped_storage()._cdata or has_gaps(left) or has_gaps(right):
        return False
    (start, end, _), (other_start, other_end, _) = _place(left), _place(right)
    return max(start, other_start) < min(end, other_end)


def _place(tensor: torch.Tensor) -> tuple[int, int, tuple[int, ...]]:
    """The start and end of a dense tensor in its storage, in bytes, and its strides."""
    start, count = size_hint(tensor.storage_offset()), math.prod(map(size_hint, tensor.shape))
    strides = tuple(map(size_hint, tensor.stride()))
    return start * tensor.element_size(), (start + count) * tensor.element_size(), strides


def has_gaps(tensor: torch.Tensor) -> bool:
    """Whether a tensor is not dense: its elements do not fill one block of memory, each once."""
    length = 1
    for stride, size in sorted(zip(map(size_hint, tensor.stride()), map(size_hint, tensor.shape), strict=True)):
        if size > 1:
            if stride != length:
                return True
            length *= size
    return False


def _may_share_elements(tensor: torch.Tensor) -> bool:
    """Whether several elements of a tensor may share one memory location, as in an expanded tensor."""
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
    """Whether two strided tensors share storage and their address ranges overlap.

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
