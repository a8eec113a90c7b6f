"""The forward and its backward as one flat function, to be traced as one graph.

Before: ``f(primals) -> outputs``
After:  ``joint(primals, tangents) -> [updated inputs, outputs, bases, gradients]``, with ``None`` for a primal that has
no gradient. If the backward writes into primals, their values at that time are further inputs, after the tangents, and
their new values further results, after the gradients. The autograd engine itself computes the gradients while the
function runs, so custom ``autograd.Function`` classes, hooks and in-place updates mean exactly what they do in eager.
"""

import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.autograd.grad_mode import _unsafe_preserve_version_counter
from torch.autograd.graph import _engine_run_backward

from precast.errors import CaptureError
from precast.graph.boundary import BoundaryFacts, InputFacts
from precast.trace.boundary_outputs import boundary_outputs
from precast.trace.record import FlatFunction


class Joint:
    """The joint function of ``function``; its primals must be leaves that require grad where ``facts`` says so.

    ``late_updates`` are the numbers of the primals that the backward writes into. ``seen`` are those that it wrote into
    in the last run: if they differ, build a new joint function with them.
    """

    def __init__(self, function: FlatFunction, facts: BoundaryFacts, late_updates: tuple[int, ...] = ()) -> None:
        self._function = _in_grad_mode(function, enabled=torch.is_grad_enabled())
        self._facts = facts
        self.late_updates = late_updates
        self.seen: tuple[int, ...] = ()

    def __call__(self, *inputs: Any) -> list[Any]:
        facts, late = self._facts, self.late_updates
        primals, others = inputs[: len(facts.inputs)], inputs[len(facts.inputs) :]
        tangents, current = others[: len(others) - len(late)], others[len(others) - len(late) :]
        own, results = _forward(self._function, primals, facts)
        for place, number in enumerate(facts.updated):
            if number in late:
                # The forward returns its value before the backward writes into it.
                results[place] = results[place].clone()
        for number, value in zip(late, current, strict=True):
            _take(own[number], value)
        versions, layouts = _versions(own), _layouts(own)
        gradients = _gradients(primals, results, tangents, facts)
        if _layouts(own) != layouts:
            raise CaptureError(
                "The backward changes the sizes, the strides or the memory of an input.",
                why="a compiled backward can write into tensors, but not change their layout",
                fix="Do that to a view, x.view_as(x), or outside of what is compiled.",
            )
        self.seen = tuple(number for number, now in enumerate(_versions(own)) if now != versions[number])
        return [*results, *gradients, *(own[number] for number in late)]


def _take(tensor: torch.Tensor, value: torch.Tensor) -> None:
    """Write the value that ``tensor`` has when the backward runs into it, invisibly to autograd."""
    with torch.no_grad(), _unsafe_preserve_version_counter(tensor):
        tensor.detach().copy_(value)


def _versions(values: Sequence[Any]) -> list[int]:
    return [value._version if isinstance(value, torch.Tensor) else 0 for value in values]


def _layouts(values: Sequence[Any]) -> list[tuple[Any, ...]]:
    tensors = [value for value in values if isinstance(value, torch.Tensor) and value.layout is torch.strided]
    return [(tuple(each.shape), each.stride(), each.storage_offset()) for each in tensors]


def gradient_function(function: FlatFunction, facts: BoundaryFacts) -> FlatFunction:
    """``gradients(primals, tangents)``, differentiable: a second backward is traced from it.

    It reruns the function rather than differentiating the joint graph, which no longer shows what autograd must not
    differentiate (``no_grad`` blocks, custom backward formulas, hooks).
    """
    function = _in_grad_mode(function, enabled=torch.is_grad_enabled())

    def run(*inputs: Any) -> list[Any]:
        primals, tangents = inputs[: len(facts.inputs)], inputs[len(facts.inputs) :]
        # The first run has already updated the caller's tensors.
        pairs = zip(primals, facts.inputs, strict=True)
        with torch.enable_grad():
            spared = [primal.clone() if fact.is_updated else primal for primal, fact in pairs]
        _, results = _forward(function, spared, facts)
        return _gradients(primals, results, tangents, facts, create_graph=True)

    return run


def _in_grad_mode(function: FlatFunction, *, enabled: bool) -> FlatFunction:
    """``function``, always called under this grad mode."""

    def run(*inputs: Any) -> Sequence[Any]:
        with torch.set_grad_enabled(enabled):
            return function(*inputs)

    return run


def _forward(function: FlatFunction, primals: Sequence[Any], facts: BoundaryFacts) -> tuple[list[Any], list[Any]]:
    """The copies of the primals that the function ran on, and everything that its graph returns."""
    with torch.enable_grad():
        own = [_own_copy(primal, fact) for primal, fact in zip(primals, facts.inputs, strict=True)]
        return own, boundary_outputs(own, function(*own), facts)


def _own_copy(primal: Any, facts: InputFacts) -> Any:
    """A tensor that the function may mutate: gradients are taken with respect to the value before."""
    if facts.requires_grad and facts.mutates_data:
        return primal.clone()
    return primal.view_as(primal) if facts.requires_grad and facts.mutates_metadata else primal


def _gradients(
    primals: Sequence[Any],
    results: Sequence[Any],
    tangents: Sequence[torch.Tensor],
    facts: BoundaryFacts,
    *,
    create_graph: bool = False,
) -> list[torch.Tensor | None]:
    wanted = [i for i, fact in enumerate(facts.inputs) if fact.gets_gradient]
    sources = [result for result, has_tangent in zip(results, facts.tangents, strict=True) if has_tangent]
    if not wanted or not sources:
        return [None] * len(primals)
    for i in wanted:
        if not primals[i].requires_grad:
            # The program made it a constant; gradients of what it had computed by then still end here.
            primals[i].requires_grad_()
    # Eager runs the backward outside of the forward's autocast block.
    with torch._C._DisableAutocast(), _explained_refusal():
        found = torch.autograd.grad(
            sources, [primals[i] for i in wanted], tangents, allow_unused=True, create_graph=create_graph
        )
    gradients: list[torch.Tensor | None] = [None] * len(primals)
    for i, gradient in zip(wanted, found, strict=True):
        gradients[i] = gradient
    return gradients


@contextmanager
def _explained_refusal() -> Iterator[None]:
    """Report what the autograd engine refuses. Eager would refuse it too, but only if that result is in a loss."""
    try:
        yield
    except RuntimeError as error:
        *_, raising = traceback.walk_tb(error.__traceback__)
        if raising[0].f_code is not _engine_run_backward.__code__:
            raise
        raise CaptureError(
            "Autograd refuses the gradient of a result.",
            why=str(error),
            fix="Return what is in no loss as result.detach(). Without fullgraph=True, precast.compile runs such a "
            "module in Python.",
        ) from error


def tangents_for(facts: BoundaryFacts) -> list[torch.Tensor]:
    """Fresh, dense fake tangents for the values that get one. Must run under the fake mode."""
    return [
        torch.empty_like(value.detach()) for value, wanted in zip(facts.values, facts.tangents, strict=True) if wanted
    ]
