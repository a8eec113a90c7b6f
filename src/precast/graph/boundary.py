"""What a program mutates and how its outputs alias its inputs: facts that a functional graph no longer shows.

The callable around the functional graph uses these facts to reproduce eager's effects for the caller.

``GradientInputs`` does the same for ``.grad`` of the inputs: read as further inputs, written as further results.

Before: ``w.grad.mul_(0.5); w.sub_(w.grad); v.grad = None``
After:  one more input for ``w.grad``, and the final value of ``v.grad`` as one more result
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

import torch


@dataclass(frozen=True)
class InputFacts:
    """What the program does to one input.

    ``mutates_data``: its values change. ``mutates_metadata``: its sizes, strides or offset change.
    ``replaces_storage``: it is pointed at other memory (``set_``). The two ``mutation_…`` flags say that *all* data
    mutations are invisible to autograd (through ``detach()`` or ``.data``), or happen under ``no_grad``;
    ``update_needs_gradient`` that gradients flow back through the updated value. ``parts_written``: for a wrapper
    subclass, the positions of the inner tensors whose values change. ``memory_bytes``: the final size of its storage,
    if the program resizes it; ``memory_asked``: its size when the program asked for it. ``starts_requiring_grad`` and
    ``stops_requiring_grad``: the program itself switches it (``requires_grad_``, ``detach_``).
    """

    mutates_data: bool = False
    mutates_metadata: bool = False
    replaces_storage: bool = False
    mutation_hidden_from_autograd: bool = False
    mutation_under_no_grad: bool = False
    update_needs_gradient: bool = False
    requires_grad: bool = False
    is_leaf: bool = True
    metadata_steps: tuple[torch._C._functionalization.ViewMeta, ...] = ()
    parts_written: tuple[int, ...] | None = None
    memory_bytes: int | None = None
    memory_asked: int | None = None
    starts_requiring_grad: bool = False
    stops_requiring_grad: bool = False

    @property
    def gets_gradient(self) -> bool:
        """Whether a backward may end in it."""
        return self.requires_grad or self.starts_requiring_grad

    @property
    def is_updated(self) -> bool:
        """Whether the functional graph must return a new value for it."""
        return self.mutates_data or self.mutates_metadata


class Relation(Enum):
    """How an output relates to memory that the caller can reach otherwise."""

    FRESH = "memory of its own"
    IS_INPUT = "the input object itself"
    IS_OUTPUT = "the same object as an earlier output"
    VIEW_OF_INPUT = "a view of an input"
    VIEW_OF_OUTPUT = "a view of another output"
    VIEW_OF_BASE = "a view of an intermediate tensor that other outputs view too"


@dataclass(frozen=True)
class ViewReplay:
    """How to regenerate an alias from its base.

    ``steps`` are torch's recorded view operations. Where there are none (symbolic sizes, or a base that is itself a
    view), the alias is an ``as_strided`` of the base; its offset is relative to the base's.
    ``is_detached``: autograd must not see the alias as a view of the base.
    """

    steps: tuple[torch._C._functionalization.ViewMeta, ...] | None
    offset_from_base: int | torch.SymInt = 0
    is_detached: bool = False


@dataclass(frozen=True)
class OutputFacts:
    """One output: its relation, the number of the input, output or base it aliases, and how to regenerate the alias.

    A view of an input that a ``torch.autograd.Function`` returned is FRESH to autograd, but has a base.
    ``is_leaf``: it requires grad although autograd recorded nothing for it: the program called ``requires_grad_``, or
    it is a view made under ``no_grad``.
    """

    relation: Relation = Relation.FRESH
    base: int | None = None
    replay: ViewReplay | None = None
    requires_grad: bool = False
    is_tensor: bool = True
    is_leaf: bool = False

    @property
    def needs_tangent(self) -> bool:
        """Whether the backward gets a gradient for it; aliases get theirs through what they alias."""
        return self.relation is Relation.FRESH and self.requires_grad and not self.is_leaf


@dataclass(frozen=True)
class BoundaryFacts:
    """Everything that happens at the boundary of one functional graph.

    The graph returns the updated inputs, then the outputs, then the intermediate bases; ``effect_tokens`` counts the
    tokens that thread its side effects. ``values`` are fakes of everything that the graph returns. Those whose number
    is in ``unused`` get no gradient, even if they need one.
    """

    inputs: tuple[InputFacts, ...]
    outputs: tuple[OutputFacts, ...]
    base_requires_grad: tuple[bool, ...] = ()
    effect_tokens: int = 0
    is_random: bool = False
    values: tuple[Any, ...] = field(default=(), repr=False, compare=False)
    unused: frozenset[int] = frozenset()
    updated: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "updated", tuple(i for i, facts in enumerate(self.inputs) if facts.is_updated))

    @property
    def tangents(self) -> tuple[bool, ...]:
        """For every value that the graph returns, in order, whether the backward gets a gradient for it."""
        updated = (self.inputs[number].update_needs_gradient for number in self.updated)
        needed = (*updated, *(facts.needs_tangent for facts in self.outputs), *self.base_requires_grad)
        return tuple(is_needed and number not in self.unused for number, is_needed in enumerate(needed))

    def with_tangents(self, given: Sequence[bool]) -> "BoundaryFacts":
        """These facts for a backward that gets only the ``given`` tangents; the other values become unused."""
        numbers = [number for number, has_tangent in enumerate(self.tangents) if has_tangent]
        unused = {number for number, is_given in zip(numbers, given, strict=True) if not is_given}
        return replace(self, unused=self.unused | unused)

    @property
    def is_differentiable(self) -> bool:
        """Whether gradients flow from any returned value to an input."""
        return any(self.tangents) and any(facts.gets_gradient for facts in self.inputs)

    @property
    def is_plain(self) -> bool:
        """Whether a call needs nothing but to run the graph."""
        return not self.updated and all(facts.relation is Relation.FRESH for facts in self.outputs)


@dataclass(frozen=True)
class GradientInputs:
    """The inputs (``owners``, by position) whose ``.grad`` a program uses.

    Those that have one (``present``) have it as an input that follows all others, in order.
    """

    owners: tuple[int, ...] = ()
    present: tuple[bool, ...] = ()

    def read(self, inputs: Sequence[Any]) -> list[Any]:
        """The owners' current gradients; None where an owner has none or is gone."""
        found = [inputs[owner] for owner in self.owners]
        return [None if each is None else each.grad for each in found]

    def split(self, flat: Sequence[Any]) -> tuple[Sequence[Any], list[Any]]:
        """The inputs without gradients, and the gradient of each owner, or None."""
        start = len(flat) - sum(self.present)
        given = iter(flat[start:])
        return flat[:start], [next(given) if is_present else None for is_present in self.present]

    def put(self, inputs: Sequence[Any], gradients: Sequence[Any]) -> None:
        """Set the owners' ``.grad`` before a run."""
        for owner, gradient in zip(self.owners, gradients, strict=True):
            if gradient is not None:
                inputs[owner].grad = gradient

    def written(self, inputs: Sequence[Any], gradients: Sequence[Any]) -> dict[int, Any]:
        """The ``.grad`` of each owner whose ``.grad`` is another object after a run than before it."""
        known = zip(self.owners, self.read(inputs), gradients, strict=True)
        return {owner: now for owner, now, before in known if now is not before}


NO_GRADIENTS = GradientInputs()


def has_hooks(tensor: Any) -> bool:
    """Whether a backward that reaches ``tensor`` calls hooks."""
    return tensor is not None and bool(tensor._backward_hooks or tensor._post_accumulate_grad_hooks)
