"""The forward and its backward as one flat function, to be traced as one graph.

Before: ``f(primals) -> outputs``
After:  ``joint(primals, tangents) -> [updated inputs, outputs, bases, gradients]``, with ``None`` for a primal that has
no gradient. The autograd engine itself computes the gradients while the function runs, so custom
``autograd.Function`` classes, hooks and in-place updates mean exactly what they mean in eager.
"""

from collections.abc import Sequence
from typing import Any

import torch

from precast.errors import CaptureError
from precast.ir.boundary import BoundaryFacts, InputFacts
from precast.tracing.boundary_outputs import boundary_outputs
from precast.tracing.flat_function import FlatFunction


def joint(function: FlatFunction, facts: BoundaryFacts) -> FlatFunction:
    """The joint function of ``function``; its primals must be leaves that require grad where ``facts`` says so."""
    function = _in_grad_mode(function, enabled=torch.is_grad_enabled())

    def run(*inputs: Any) -> list[Any]:
        primals, tangents = inputs[: len(facts.inputs)], inputs[len(facts.inputs) :]
        results = _forward(function, primals, facts)
        return [*results, *_gradients(primals, results, tangents, facts)]

    return run


def gradient_function(function: FlatFunction, facts: BoundaryFacts) -> FlatFunction:
    """``gradients(primals, tangents)``, themselves differentiable: what a second backward is traced from.

    It runs the function again rather than differentiating the joint graph, which no longer shows what autograd was told
    not to differentiate (``no_grad`` blocks, custom backward formulas, hooks).
    """
    function = _in_grad_mode(function, enabled=torch.is_grad_enabled())

    def run(*inputs: Any) -> list[Any]:
        primals, tangents = inputs[: len(facts.inputs)], inputs[len(facts.inputs) :]
        # The first run has updated the caller's tensors already.
        pairs = zip(primals, facts.inputs, strict=True)
        spared = [primal.clone() if fact.is_updated else primal for primal, fact in pairs]
        return _gradients(primals, _forward(function, spared, facts), tangents, facts, create_graph=True)

    return run


def _in_grad_mode(function: FlatFunction, *, enabled: bool) -> FlatFunction:
    """``function`` under the grad mode that surrounds it now, whenever it is called."""

    def run(*inputs: Any) -> Sequence[Any]:
        with torch.set_grad_enabled(enabled):
            return function(*inputs)

    return run


def _forward(function: FlatFunction, primals: Sequence[Any], facts: BoundaryFacts) -> list[Any]:
    with torch.enable_grad():
        own = [_own_copy(primal, fact) for primal, fact in zip(primals, facts.inputs, strict=True)]
        return boundary_outputs(own, function(*own), facts)


def _own_copy(primal: Any, facts: InputFacts) -> Any:
    """Something the function may write into: gradients are taken with respect to the value before."""
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
    wanted = [i for i, fact in enumerate(facts.inputs) if fact.requires_grad]
    sources = [result for result, has_tangent in zip(results, facts.tangents, strict=True) if has_tangent]
    # Eager runs the backward outside of the forward's autocast block.
    with torch._C._DisableAutocast():
        found = torch.autograd.grad(
            sources, [primals[i] for i in wanted], tangents, allow_unused=True, create_graph=create_graph
        )
    gradients: list[torch.Tensor | None] = [None] * len(primals)
    for i, gradient in zip(wanted, found, strict=True):
        if gradient is not None and gradient.layout is not torch.strided:
            raise CaptureError(
                f"The gradient of input {i} is sparse.",
                why="compiled backward graphs compute dense tensors",
                fix="Use sparse=False in the embedding.",
            )
        gradients[i] = gradient
    return gradients


def tangents_for(facts: BoundaryFacts) -> list[torch.Tensor]:
    """Fresh fake tangents for the values that get one, in dense memory of their own. Runs under the fake mode."""
    return [
        torch.empty_like(value.detach()) for value, wanted in zip(facts.values, facts.tangents, strict=True) if wanted
    ]
