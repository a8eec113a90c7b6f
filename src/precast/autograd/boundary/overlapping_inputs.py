"""Handles inputs that share memory, if one of them is written into.

Inputs that overlap are replaced by a synthetic base, of which they are views:

Before: ``f(a, b): a.mul_(2); return b + 1`` called with ``a = x[0], b = x[:, 0]``
After:  ``g(x): f(x.as_strided(…a…), x.as_strided(…b…))``, so that the update of ``a`` is seen through ``b``

A tensor that is passed twice is deduplicated:

Before: ``f(a, b): a.add_(1); return b`` called with ``a is b``
After:  ``g(a): f(a, a)``, so that the update of ``a`` is seen through ``b``

Wrapper subclasses whose memory is also visible through another input are refused:

Before: ``f(x, y): x.mul_(2); return y + 1`` called with ``x = Wrapper(a, b), y = a``
After:  an error: compiled over ``a``, ``b`` and ``y`` separately, the program would not see the update through ``y``
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

import numpy as np
import torch
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.autograd.grad_mode import _unsafe_preserve_version_counter

from precast.autograd.boundary import FlatCall
from precast.errors import CaptureError, InputValueError
from precast.graph.boundary import InputFacts
from precast.trace.fake_inputs import innermost
from precast.trace.record import FlatFunction

_MAX_WORK: Any = 10_000
# The assumed start address of storages; numpy treats 0 as no address.
_START = 4096


@dataclass(frozen=True)
class Member:
    """One input as a view of its base."""

    place: int
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int

    @classmethod
    def of(cls, place: int, tensor: torch.Tensor, base: torch.Tensor) -> "Member":
        offset = tensor.storage_offset() - base.storage_offset()
        return cls(place, tuple(tensor.shape), tuple(tensor.stride()), int(offset))

    def cut(self, base: torch.Tensor) -> torch.Tensor:
        return base.as_strided(self.size, self.stride, base.storage_offset() + self.offset)


@dataclass(frozen=True)
class SyntheticBasePlan:
    """Which groups of inputs are replaced by their base, and which inputs are passed unchanged; bases come first.

    Filled in by the first run of the wrapped function: ``returned_members``, outputs that are a member itself, and
    ``moved_members``, by the number of their base the members whose sizes or strides it changed, as they are then.
    """

    groups: tuple[tuple[Member, ...], ...]
    others: tuple[int, ...]
    count: int
    returned_members: dict[int, int] = field(default_factory=dict, compare=False)
    moved_members: dict[int, list[Member]] = field(default_factory=dict, compare=False)

    def function(self, function: FlatFunction) -> FlatFunction:
        """``function`` over the bases and the other inputs."""

        def run(*values: Any) -> Sequence[Any]:
            inputs: list[Any] = [None] * self.count
            for base, group in zip(values, self.groups, strict=False):
                for member in group:
                    inputs[member.place] = member.cut(base)
            for place, value in zip(self.others, values[len(self.groups) :], strict=True):
                inputs[place] = value
            members = [inputs[member.place] for group in self.groups for member in group]
            before = [each.requires_grad for each in members]
            outputs = function(*inputs)
            if any(map(_is_switched, before, members)):
                raise _refused("says of an input whether it requires grad", "requires_grad_, detach_")
            for number, (base, group) in enumerate(zip(values, self.groups, strict=False)):
                now = [_where_it_is(member.place, inputs[member.place], base) for member in group]
                self.moved_members[number] = [after for after in now if after not in group]
            places = {id(inputs[member.place]): member.place for group in self.groups for member in group}
            for position, output in enumerate(outputs):
                if id(output) in places:
                    self.returned_members[position] = places[id(output)]
            return outputs

        return run

    def inputs(self, values: Sequence[Any]) -> list[Any]:
        """The bases of a real call, then its other inputs."""
        bases = [_common_base([values[member.place] for member in group]) for group in self.groups]
        return [*bases, *(values[place] for place in self.others)]

    def call(self, inner: FlatCall) -> FlatCall:
        """Wrap a call over bases as one over all inputs; members that are returned are the caller's own objects."""

        def call(values: Sequence[Any]) -> list[Any]:
            bases = self.inputs(values)
            starts = [base.storage_offset() for base in bases[: len(self.groups)]]
            outputs = inner(bases)
            for number, members in self.moved_members.items():
                for member in members:
                    start = starts[number] + member.offset
                    # The data that gradients of gradients need is still the same.
                    with _unsafe_preserve_version_counter(values[member.place]):
                        values[member.place].as_strided_(member.size, member.stride, start)
            for position, place in self.returned_members.items():
                outputs[position] = values[place]
            return outputs

        return call


def plan_synthetic_bases(values: Sequence[Any], written: Collection[int]) -> SyntheticBasePlan | None:
    """Group inputs that share bytes with one that is written into; ``None`` if none do."""
    groups = [group for group in overlapping_groups(values) if not written_free(group, written)]
    if not groups:
        return None
    members = tuple(tuple(_member(place, values, group) for place in group) for group in groups)
    merged = {place for group in groups for place in group}
    return SyntheticBasePlan(members, tuple(i for i in range(len(values)) if i not in merged), len(values))


def written_free(group: Collection[int], written: Collection[int]) -> bool:
    return not set(group) & set(written)


def overlapping_groups(values: Sequence[Any]) -> list[list[int]]:
    """The positions of values that share bytes, directly or through others."""
    by_storage: dict[int, list[int]] = {}
    for place, value in enumerate(values):
        if (storage := storage_of(value)) is not None:
            by_storage.setdefault(storage, []).append(place)
    groups: list[list[int]] = []
    for places in by_storage.values():
        if len(places) > 1:
            groups += _connected(places, values)
    return [group for group in groups if len(group) > 1]


def storage_of(value: Any) -> int | None:
    """A key of the storage, equal for tensors that share it; ``None`` for tensors without elements or strides."""
    if isinstance(value, torch.Tensor) and value.layout is torch.strided and value.numel():
        number: int = value.untyped_storage()._cdata
        return number
    return None


def _connected(places: Sequence[int], values: Sequence[Any]) -> list[list[int]]:
    """Split inputs of one storage into groups that share bytes, directly or through others."""
    groups: list[list[int]] = []
    for place in places:
        touching = [group for group in groups if any(share_bytes(values[place], values[other]) for other in group)]
        groups = [group for group in groups if group not in touching]
        groups.append([*(other for group in touching for other in group), place])
    return groups


def share_bytes(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Whether two tensors of one storage have a byte in common."""
    # The problem is hard in general; if numpy gives up, treating the two as overlapping is safe.
    try:
        return bool(np.shares_memory(_addresses(left), _addresses(right), max_work=_MAX_WORK))
    except np.exceptions.TooHardError:
        return True


def _addresses(tensor: torch.Tensor) -> "np.ndarray[Any, Any]":
    """An array over the same addresses, never read: only its pointer, sizes and strides matter.

    Addresses count from the start of the storage, which may itself have none (tensors on ``meta``, emptied storages).
    """
    item = tensor.element_size()
    interface = {
        "shape": tuple(tensor.shape),
        "strides": tuple(stride * item for stride in tensor.stride()),
        "typestr": f"|V{item}",
        "data": (_START + tensor.storage_offset() * item, False),
        "version": 3,
    }
    return np.asarray(type("Addresses", (), {"__array_interface__": interface})())


def _member(place: int, values: Sequence[Any], group: Sequence[int]) -> Member:
    return Member.of(place, values[place], _common_base([values[other] for other in group]))


def _is_switched(before: bool, now: torch.Tensor) -> bool:
    """Whether the program says itself that a tensor requires grad, or that it does not; a write may entail it, too."""
    return not now.requires_grad if before else now.requires_grad and now.is_leaf


def _where_it_is(place: int, tensor: torch.Tensor, base: torch.Tensor) -> Member:
    """What an input is of its base after the program has run."""
    if isinstance(tensor, FunctionalTensor) and torch._functionalize_was_storage_changed(tensor.elem):
        raise _refused("points an input at other memory", "set_")
    return Member.of(place, tensor, base)


def _refused(does: str, how: str) -> CaptureError:
    return CaptureError(
        f"The program {does} ({how}), and another input, of which one is written into, shares memory with it.",
        why="inputs that share memory are compiled as parts of one tensor",
        fix="Pass tensors that share no memory, or copies.",
    )


def _common_base(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """The tensor that all of them are views of, according to autograd; else the whole storage as one plain tensor."""
    roots = {id(root): root for root in (t if t._base is None else t._base for t in tensors)}
    if len(roots) == 1:
        return next(iter(roots.values()))
    if any(tensor.requires_grad for tensor in tensors) or len({tensor.dtype for tensor in tensors}) > 1:
        raise InputValueError(
            "Inputs overlap in memory, one is written into, and they are not views of one tensor.",
            why="gradients through the overlap cannot be told apart",
            fix="Pass views of the same tensor, or clone() one of them.",
        )
    storage = tensors[0].untyped_storage()
    whole = torch.empty(0, dtype=tensors[0].dtype, device=tensors[0].device)
    return whole.set_(storage, 0, (storage.nbytes() // tensors[0].element_size(),))  # type: ignore[call-overload, no-any-return]


@dataclass(frozen=True)
class DuplicatePlan:
    """``sources[i]``: the number of the kept input at place ``i``; ``kept``: the places that are passed on."""

    sources: tuple[int, ...]
    kept: tuple[int, ...]

    def function(self, function: FlatFunction) -> FlatFunction:
        """``function`` over only the kept inputs."""
        return lambda *kept: function(*[kept[source] for source in self.sources])

    def inputs(self, values: Sequence[Any]) -> list[Any]:
        return [values[place] for place in self.kept]

    def call(self, inner: FlatCall) -> FlatCall:
        """Wrap a call over the kept inputs as one over all inputs."""
        return lambda values: inner(self.inputs(values))


def plan_duplicates(values: Sequence[Any], written: Collection[int]) -> DuplicatePlan | None:
    """How to drop repeated tensors; ``None`` if no tensor that is written into is repeated."""
    first: dict[int, int] = {}
    places = [
        first.setdefault(id(value), i) if isinstance(value, torch.Tensor) else i for i, value in enumerate(values)
    ]
    if all(place == i for i, place in enumerate(places)):
        return None
    written_ids = {id(values[number]) for number in written}
    # Only repeats of written tensors are merged: the others keep their own gradients.
    places = [
        place if id(value) in written_ids else i for i, (place, value) in enumerate(zip(places, values, strict=True))
    ]
    kept = tuple(i for i, place in enumerate(places) if place == i)
    if len(kept) == len(values):
        return None
    position = {place: number for number, place in enumerate(kept)}
    return DuplicatePlan(tuple(position[place] for place in places), kept)


WrittenParts = tuple[tuple[int, ...] | None, ...]
"""For each input, which of its inner tensors are written; ``None`` for an input that is no wrapper."""


@dataclass(frozen=True)
class _Part:
    """One plain tensor of a call: an input, or an inner tensor of one."""

    owner: torch.Tensor
    tensor: torch.Tensor
    is_wrapped: bool
    is_written: bool


def written_parts(inputs: Sequence[InputFacts]) -> WrittenParts | None:
    """The written parts of all inputs; ``None`` if no input is a wrapper, as in most programs."""
    parts = tuple(facts.parts_written for facts in inputs)
    return parts if any(part is not None for part in parts) else None


def without_wrappers(values: Sequence[Any], parts: WrittenParts | None) -> Sequence[Any]:
    """The values with None for wrappers, whose own storage is meaningless."""
    if parts is None:
        return values
    return [value if part is None else None for value, part in zip(values, parts, strict=True)]


def refuse_shared_parts(values: Sequence[Any], written: Collection[int], parts: WrittenParts) -> None:
    """Raise if memory of a wrapper is written, and visible through two inputs; the same object twice is allowed."""
    by_storage: dict[int, list[_Part]] = {}
    for part in _parts(values, written, parts):
        if (storage := storage_of(part.tensor)) is not None:
            by_storage.setdefault(storage, []).append(part)
    for sharing in by_storage.values():
        for left, right in combinations(sharing, 2):
            if (left.is_wrapped or right.is_wrapped) and (left.is_written or right.is_written):
                _refuse_overlap(left, right)


def _parts(values: Sequence[Any], written: Collection[int], parts: WrittenParts) -> Iterator[_Part]:
    """The parts of each distinct input, as written if the program writes through any of its places."""
    places: dict[int, list[int]] = {}
    for place, value in enumerate(values):
        if isinstance(value, torch.Tensor):
            places.setdefault(id(value), []).append(place)
    for first, *others in places.values():
        changed = {number for place in (first, *others) for number in parts[place] or ()}
        is_written, is_wrapper = not {first, *others}.isdisjoint(written), parts[first] is not None
        for number, tensor in enumerate(innermost(values[first])):
            yield _Part(values[first], tensor, is_wrapper, number in changed if is_wrapper else is_written)


def _refuse_overlap(left: _Part, right: _Part) -> None:
    if not share_bytes(left.tensor, right.tensor):
        return
    kind = type(left.owner if left.is_wrapped else right.owner).__name__
    raise InputValueError(
        f"Inputs overlap in memory, one is written into, and one of them is a {kind}, which wraps that memory.",
        why="only the subclass knows what its memory means, so the update cannot be shown through both",
        fix="clone() one of them, or pass the same object twice.",
    )
