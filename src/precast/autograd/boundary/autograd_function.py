"""Ties a forward and a backward graph together as one node of the caller's autograd graph.

Before: ``forward(primals) -> [results, saved]`` and ``backward(saved, tangents) -> gradients``, two plain functions
After:  ``call(primals) -> [results]``, differentiable to any order

The backward is itself differentiable: when the caller asks for a graph of it (``create_graph=True``), gradients are
computed by ``second_order`` from the primals and tangents, which is compiled when first needed.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from precast.autograd.boundary import FlatCall
from precast.autograd.boxing import BoxedCall


@dataclass(frozen=True)
class TrainingFacts:
    """What each result of a compiled forward is, and which primals its backward needs.

    ``differentiable[i]``: result ``i`` has a tangent. ``opaque[i]``: result ``i`` is an alias that the caller gets in
    another way, so autograd must not see it. ``detached[i]``: the graph returns an input, or a value twice.
    ``tangent_orders``: the memory order that the backward was traced with, for each tangent. ``relevant``: the primals
    that gradients depend on. ``updated``: the primals that are changed by the call itself, ``late_updates``: those that
    are changed by its backward. ``origins``: for each primal, the tangents that its gradient comes from, unless that is
    all of them for all: if none of these is given, the primal gets no gradient.
    """

    result_count: int
    saved_tensor_count: int
    differentiable: tuple[bool, ...]
    opaque: tuple[bool, ...]
    detached: tuple[bool, ...]
    tangent_orders: tuple[tuple[int, ...] | None, ...]
    relevant: tuple[int, ...]
    updated: tuple[int, ...]
    is_random: bool
    late_updates: tuple[int, ...] = ()
    origins: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True)
class TrainingGraphs:
    """Compiled forward and backward, and how gradients of gradients are come by."""

    forward: BoxedCall
    backward: BoxedCall
    second_order: Callable[[Sequence[Any]], Sequence[Any]]
    facts: TrainingFacts


class _Alias:
    """Carries a tensor past the autograd engine."""

    __slots__ = ("tensor",)

    def __init__(self, tensor: Any) -> None:
        self.tensor = tensor


def differentiable_call(graphs: TrainingGraphs) -> FlatCall:
    """A flat call that the autograd engine can differentiate; outside of grad mode too, if compiled there.

    A program may switch grad mode on inside of ``no_grad``.
    """
    function = _autograd_function(graphs)
    facts = graphs.facts
    # An input that was written in place is its own new value.
    has_aliases = any(facts.opaque) or bool(facts.updated)
    apply: Callable[..., Any] = function.apply
    if not torch.is_grad_enabled():
        apply = torch.enable_grad()(apply)

    def call(inputs: Sequence[Any]) -> list[Any]:
        written_late = [_Alias(inputs[number]) for number in facts.late_updates]
        if facts.updated:
            inputs = _apart_from_updates(inputs, facts)
        results = apply(*inputs, *written_late)
        if has_aliases:
            return [result.tensor if type(result) is _Alias else result for result in results]
        return list(results)

    return call


def _apart_from_updates(inputs: Sequence[Any], facts: TrainingFacts) -> list[Any]:
    """The inputs, with copies of those that backwards need as they were before the call's own updates.

    Autograd counts changes by memory, so that a tensor beside a changed one in the same memory is copied too. Inputs
    whose new history will hold this call are copied as well: the call must not hold them in turn.
    """
    changed = {inputs[number].untyped_storage()._cdata for number in facts.updated}
    copied = {number for number, visible in zip(facts.updated, facts.differentiable, strict=False) if visible}
    copied.update(i for i in facts.relevant if inputs[i].untyped_storage()._cdata in changed)
    return [value.clone() if i in copied else value for i, value in enumerate(inputs)]


def _autograd_function(graphs: TrainingGraphs) -> type[torch.autograd.Function]:
    facts = graphs.facts
    count, saved_count = facts.result_count, facts.saved_tensor_count
    forward_graph, backward_graph = graphs.forward, graphs.backward
    special = [i for i in range(count) if facts.opaque[i] or facts.detached[i]]
    constant = [i for i in range(count) if not facts.differentiable[i] and not facts.opaque[i]]
    with_tangent = [i for i in range(count) if facts.differentiable[i]]
    orders, relevant, late = facts.tangent_orders, facts.relevant, len(facts.late_updates)
    updated = [(i, number) for i, number in enumerate(facts.updated) if not facts.differentiable[i]]
    origins = facts.origins
    sizes_start, is_plain, is_random = count + saved_count, not special and not constant, facts.is_random

    class CompiledFunction(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *inputs: Any) -> Any:
            if is_random:
                ctx.random_state = torch.get_rng_state()
            if late:
                inputs, ctx.written_late = inputs[:-late], [alias.tensor for alias in inputs[-late:]]
            ctx.primals = inputs
            ctx.versions = [inputs[i]._version for i in relevant]
            outputs = forward_graph([*inputs])
            ctx.save_for_backward(*outputs[count:sizes_start])
            ctx.sizes = outputs[sizes_start:]
            if origins:
                ctx.set_materialize_grads(False)
                ctx.shown = [(outputs[i].shape, outputs[i].dtype, outputs[i].device) for i in with_tangent]
            results = [_own(result) for result in outputs[:count]]
            if is_plain:
                return tuple(results)
            for i in special:
                results[i] = _Alias(results[i]) if facts.opaque[i] else results[i].detach()
            for i, number in updated:
                if outputs[i] is inputs[number]:
                    results[i] = _Alias(outputs[i])
            ctx.mark_non_differentiable(*[results[i] for i in constant if isinstance(results[i], torch.Tensor)])
            return tuple(results)

        @staticmethod
        def backward(ctx: Any, *gradients: Any) -> Any:
            tangents = [gradients[i] for i in with_tangent]
            if origins and any(tangent is None for tangent in tangents):
                return _gradients_of_some(CompiledFunction, ctx, gradients, facts)
            if torch.is_grad_enabled():
                return _differentiable_gradients(ctx, graphs, tangents)
            tangents = [_in_order(tangent, order) for tangent, order in zip(tangents, orders, strict=True)]
            arguments = [*ctx.sizes, *ctx.saved_tensors, *tangents]
            if not torch._C._autograd._get_current_graph_task_keep_graph():
                # From here on the list alone holds what was saved, so that the graph can free it as it goes.
                ctx.primals = None
                ctx.maybe_clear_saved_tensors()
            if late:
                return _gradients_and_updates(backward_graph, arguments, ctx.written_late)
            return tuple(backward_graph(arguments))

    return CompiledFunction


def _own(result: Any) -> Any:
    """The result as a tensor that callers may write into: autograd forbids it of views that are made out of its sight.

    What the caller is to know as a view is made again later (``alias_regeneration``).
    """
    return result.detach() if isinstance(result, torch.Tensor) and result._is_view() else result


def _gradients_of_some(function: Any, ctx: Any, gradients: Sequence[Any], facts: TrainingFacts) -> tuple[Any, ...]:
    """The gradients where some results have no tangent: none for a primal that comes into no other."""
    with_tangent = [i for i, is_wanted in enumerate(facts.differentiable) if is_wanted]
    given, filled = set(), list(gradients)
    for number, (i, (shape, dtype, device)) in enumerate(zip(with_tangent, ctx.shown, strict=True)):
        if gradients[i] is None:
            filled[i] = torch.zeros(shape, dtype=dtype, device=device)
        else:
            given.add(number)
    found = function.backward(ctx, *filled)
    kept = [value if given.intersection(from_) else None for value, from_ in zip(found, facts.origins, strict=False)]
    return (*kept, *found[len(kept) :])


def _gradients_and_updates(graph: BoxedCall, arguments: list[Any], written: Sequence[torch.Tensor]) -> tuple[Any, ...]:
    """What a backward gives that writes into tensors, which it takes as they are now."""
    results = graph([*arguments, *written])
    start = len(results) - len(written)
    with torch.no_grad():
        for tensor, value in zip(written, results[start:], strict=True):
            tensor.copy_(value)
    return (*results[:start], *(None,) * len(written))


def _in_order(tangent: torch.Tensor, order: tuple[int, ...] | None) -> torch.Tensor:
    """The tangent in the memory order that the backward was traced with: dimensions from outermost to innermost."""
    if order is None:
        return tangent.contiguous() if tangent.layout is torch.strided else tangent
    places = [order.index(dim) for dim in range(len(order))]
    return tangent.permute(order).contiguous().permute(places)


def _differentiable_gradients(ctx: Any, graphs: TrainingGraphs, tangents: Sequence[torch.Tensor]) -> Any:
    # Raises as eager does if the first backward freed what it had saved.
    _ = ctx.saved_tensors
    if graphs.facts.late_updates:
        raise RuntimeError(
            "gradients of gradients are not computed for a compiled function whose backward writes into tensors"
        )
    primals = ctx.primals
    if any(primals[i]._version != version for i, version in zip(graphs.facts.relevant, ctx.versions, strict=True)):
        raise RuntimeError(
            "one of the variables needed for gradient computation has been modified by an inplace operation: "
            "an input of a compiled function was changed between its forward and the backward of its backward"
        )
    if not graphs.facts.is_random:
        return tuple(graphs.second_order([*primals, *tangents]))
    with torch.random.fork_rng(devices=[]):
        torch.set_rng_state(ctx.random_state)
        return tuple(graphs.second_order([*primals, *tangents]))
