"""Gradients of gradients of a call that was not traced: it is analyzed when they are first asked for."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree as pytree

from precast.autograd.ambient import ambient_of
from precast.autograd.call_parts import Gradients
from precast.autograd.state_guards import StateGuards
from precast.autograd.state_slots import ModuleSlots
from precast.ir.opened_objects import opened
from precast.tracing.flat_function import FlatFunction
from precast.tracing.session import tracing_session

if TYPE_CHECKING:
    from precast.ir.boundary import BoundaryFacts


def second_order_later(
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    slots: ModuleSlots,
    second_order: "Callable[[FlatFunction, BoundaryFacts], Gradients]",
    guards: StateGuards,
) -> Gradients:
    """Gradients of a call like this one. Holds no tensor of the call: it gets those of the call that asks."""
    leaves, tree = pytree.tree_flatten(opened((tuple(args), dict(kwargs))))
    template = [None if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
    places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
    ambient, grad_mode = ambient_of(function), torch.is_grad_enabled()
    made: list[Gradients] = []

    def gradients(values: Sequence[Any]) -> Sequence[Any]:
        if not made:
            # Seldom needed, and it brings the tracer with it.
            from precast.autograd.variant_compilation import analyze_call

            given = list(template)
            for place, value in zip(places, values[len(slots) :], strict=False):
                given[place] = value
            again, keywords = pytree.tree_unflatten(given, tree)
            with guards.assumed(), ambient(), torch.set_grad_enabled(grad_mode), tracing_session():
                analyzed = analyze_call(function, again, keywords, slots, {})
                made.append(second_order(analyzed.flat, analyzed.facts))
        return made[0](values)

    return gradients
