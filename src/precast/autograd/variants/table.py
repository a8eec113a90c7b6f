"""The variants of one function: looked up by the guard keys of calls, and listed with the reasons for compiling."""

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import torch
from torch.utils import _pytree as pytree

from precast.autograd.guards.call_key import dynamic_key, static_key, what_changes
from precast.autograd.guards.state import StateGuards
from precast.autograd.variants.compiled import CompiledVariant
from precast.graph.opened_objects import PLAIN_TYPES, opened
from precast.trace.capture.module_state import module_state, root_modules
from precast.trace.state.places import Place

FIRST = "the first call"
_MOST_REASONS = 3

InputNames = Callable[[], Sequence[str]]
"""Returns names for the values of a call; called only for messages."""


@dataclass(frozen=True)
class Variant:
    """One compiled variant: the name of its graphs, when and why it was compiled, and its guards in words.

    ``inputs`` are the tensors and values it was compiled for, ``guards`` the Python state that it relies on, ``sizes``
    the conditions on dynamic sizes. ``tensors`` are the user's names for the inputs of its graphs, in order.
    """

    name: str
    compiled_at: datetime
    seconds: float
    reason: str
    inputs: tuple[str, ...]
    guards: tuple[str, ...] = field(repr=False)
    sizes: tuple[str, ...] = ()
    tensors: tuple[str, ...] = field(default=(), repr=False)

    def __str__(self) -> str:
        return f"{self.name}, compiled at {self.compiled_at:%H:%M:%S} in {self.seconds:.2f} s: {self.reason}"


@dataclass(frozen=True)
class Record:
    """A variant, its name, time and reason, and a textual form of the arguments that it was compiled for."""

    variant: CompiledVariant
    name: str
    compiled_at: datetime
    seconds: float
    reason: str
    arguments: Any

    def described(self, function: Callable[..., Any]) -> Variant:
        # Imported here: a warm start does not need it.
        from precast.trace.capture.call import flatten_call

        guards = () if self.variant.guards is None else tuple(self.variant.guards.words())
        call = flatten_call(function, *self.arguments)
        inputs = tuple(f"{name}: {words}" for name, words in zip(call.names, call.leaves, strict=True))
        state = [item.target for item in module_state(root_modules(function))]
        values = [*state, *call.names]
        sizes = () if self.variant.sizes is None else tuple(self.variant.sizes.words(values))
        tensors = self._tensor_names(values, len(state))
        return Variant(self.name, self.compiled_at, self.seconds, self.reason, inputs, guards, sizes, tensors)

    def _tensor_names(self, values: Sequence[str], state_count: int) -> tuple[str, ...]:
        variant = self.variant
        if variant.overlap.plans or max(variant.places, default=-1) >= len(values):
            return ()
        names = [values[place] for place in variant.places]
        names[state_count:state_count] = [place.path for place in variant.captured.places]
        return tuple(names)


def in_words(arguments: tuple[Any, Any]) -> Any:
    """The arguments of a call with each leaf replaced by a text, so that nothing is kept alive.

    Containers become dicts with the same keys: a container's class may refuse texts.
    """
    args, kwargs = opened(arguments)
    return tuple(map(_in_words, args)), {name: _in_words(value) for name, value in kwargs.items()}


def _in_words(value: Any) -> Any:
    children, tree = pytree.tree_flatten(value, is_leaf=lambda each: each is not value)
    if tree.is_leaf():
        return _words_for(value)
    with_keys = pytree.SUPPORTED_NODES[tree.type].flatten_with_keys_fn
    keys = range(len(children)) if with_keys is None else [_name_of(key) for key, _ in with_keys(value)[0]]
    return dict(zip(keys, map(_in_words, children), strict=True))


def _name_of(key: Any) -> Any:
    return getattr(key, "key", getattr(key, "idx", getattr(key, "name", key)))


def _words_for(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    return repr(value) if isinstance(value, PLAIN_TYPES) else type(value).__name__


class VariantTable:
    """All variants, by the keys of the calls they serve; ``dynamic`` is that of their function."""

    def __init__(self, dynamic: bool | None) -> None:
        self._dynamic = dynamic
        self._by_key: OrderedDict[Any, list[Record]] = OrderedDict()
        self._latest_key: tuple[Any, ...] | None = None
        self._make_key = static_key

    def __len__(self) -> int:
        return sum(map(len, self._by_key.values()))

    def records(self) -> list[Record]:
        """All records, in the order of compilation."""
        found = [record for records in self._by_key.values() for record in records]
        return sorted(found, key=lambda record: record.compiled_at)

    def look_up(
        self, values: Sequence[Any], guard_key: tuple[Any, ...], *, has_numbers: bool = False
    ) -> CompiledVariant | None:
        """The variant that serves a call; ``has_numbers``: some of its sizes are numbers."""
        if self._dynamic is not True:
            for record in self._by_key.get((*guard_key, static_key(values)), ()):
                if record.variant.fits(values):
                    return record.variant
        if self._dynamic is not False or has_numbers:
            for record in self._by_key.get((*guard_key, dynamic_key(values)), ()):
                if record.variant.fits(values):
                    return record.variant
        return None

    def reason(self, values: Sequence[Any], guard_key: tuple[Any, ...], names: InputNames) -> str:
        """Describe why no variant serves a call."""
        if self._latest_key is None:
            return FIRST
        for guards in self._guards_alike(values, guard_key):
            if changes := list(guards.changes()):
                more = f"; and {len(changes) - _MOST_REASONS} more" if len(changes) > _MOST_REASONS else ""
                return "; ".join(changes[:_MOST_REASONS]) + more
        for variant in self._alike(values, guard_key):
            if (change := variant.changed_tensors(values)) is not None:
                return change
        return what_changes([self._latest_key, (*guard_key, self._make_key(values))], names())

    def changed_numbers(self, values: Sequence[Any], guard_key: tuple[Any, ...]) -> list[Place]:
        """The places in Python state whose numbers differ from those of an otherwise equal call."""
        for guards in self._guards_alike(values, guard_key):
            return guards.changed_numbers()
        return []

    def resized_tensors(self, values: Sequence[Any], guard_key: tuple[Any, ...]) -> list[Place]:
        """The places in Python state whose tensors differ in their sizes from those of an otherwise equal call."""
        for variant in self._alike(values, guard_key):
            if variant.guards is None or variant.guards.hold():
                return variant.resized_tensors()
        return []

    def _guards_alike(self, values: Sequence[Any], guard_key: tuple[Any, ...]) -> Iterator[StateGuards]:
        """The state guards of variants that fit in everything else, the newest first."""
        for variant in self._alike(values, guard_key):
            if variant.fits_inputs(values) and variant.guards is not None:
                yield variant.guards

    def _alike(self, values: Sequence[Any], guard_key: tuple[Any, ...]) -> list[CompiledVariant]:
        """The variants whose key fits, the newest first."""
        keys = [(*guard_key, make_key(values)) for make_key in (static_key, dynamic_key)]
        return [record.variant for key in keys for record in self._by_key.get(key, ())][::-1]

    def add(self, values: Sequence[Any], guard_key: tuple[Any, ...], record: Record, *, any_size: bool) -> None:
        """Add a variant for calls like this one; with ``any_size``, under the key without dynamic sizes."""
        self._make_key = dynamic_key if any_size else static_key
        self._latest_key = (*guard_key, self._make_key(values))
        self._by_key.setdefault(self._latest_key, []).append(record)

    def drop_oldest(self) -> None:
        """Drop one variant: the oldest one of the oldest key."""
        key, records = next(iter(self._by_key.items()))
        del records[0]
        if not records:
            del self._by_key[key]

    def what_keeps_changing(self, names: InputNames) -> str:
        """Describe how the variants differ."""
        reasons = [record.reason for records in self._by_key.values() for record in records[1:]]
        changes = [what_changes(list(self._by_key), names())] if len(self._by_key) > 1 or not reasons else []
        return "; ".join([*changes, *reasons[-1:]])
