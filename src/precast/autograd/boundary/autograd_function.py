"""Combines a forward and a backward graph into one node of the caller's autograd graph.

Before: ``forward(primals) -> [results, saved]`` and ``backward(saved, tangents) -> gradients``, two plain functions
After:  ``call(primals) -> [results]``, differentiable to any order

The backward is itself differentiable: with ``create_graph=True``, gradients are computed by ``second_order`` from the
primals and tangents, which is compiled when first needed.

A forward graph with kernels that depend on grad mode runs in grad mode:

Before: ``forward([x])`` with grad mode off, as inside autograd nodes: the kernel returns no workspace
After:  ``forward([x.detach()])`` with grad mode on: it returns the workspace, and autograd still records nothing

Outputs may require grad without depending on any input: they depend on tensors that the program created, or the program
has run their backward itself, and doing it again is an error:

Before: ``loss``, a plain tensor
After:  ``loss`` with a ``grad_fn`` that does nothing, or raises what eager raises for a graph that was freed
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from precast.autograd.boundary import FlatCall
from precast.autograd.boxing import BoxedCall
from precast.ops.facts import Fact, facts_of


@dataclass(frozen=True)
class TrainingFacts:
    """Facts about the results of a compiled forward, and about the primals that its backward needs.

    ``differentiable[i]``: result ``i`` has a tangent. ``opaque[i]``: result ``i`` is an alias that is regenerated for
    the caller, so autograd must not see it. ``detached[i]``: the graph returns an input, or a value twice.
    ``tangent_orders``: the memory order that the backward was traced with, for each tangent. ``relevant``: the
    primals that gradients depend on. ``updated``: the primals that the call mutates, ``laid_out``: those whose
    sizes or strides it changes, ``late_updates``: those that its backward mutates. ``saved`` identifies the saved
    values if there are several tangents, so that a partial backward can start from the same ones. ``writes``:
    graphs mutate their values.
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
    saved: tuple[str, ...] = ()
    writes: bool = False
    laid_out: tuple[int, ...] = ()


@dataclass(frozen=True)
class PartialBackward:
    """A backward for calls in which only some results get a tangent.

    ``taken`` tells for each of its inputs the position of a saved value, or ``~number`` for a primal; ``late_updates``
    are the primals that it writes into.
    """

    graph: BoxedCall
    taken: tuple[int, ...]
    late_updates: tuple[int, ...] = ()


PartialBackwards = Callable[[Sequence[Any], tuple[bool, ...]], PartialBackward | None]
"""Returns the backward for the given tangents of a call with these primals; None if the saved values do not suffice."""


@dataclass(frozen=True)
class TrainingGraphs:
    """Compiled forward and backward, and how second-order gradients and partial backwards are made.

    ``takes_tangents`` checks that tangents have the layouts that the backward was compiled for; ``views`` makes the
    results that autograd must treat as views of inputs, with this backward.
    """

    forward: BoxedCall
    backward: BoxedCall
    second_order: Callable[[Sequence[Any]], Sequence[Any]]
    facts: TrainingFacts
    partial: PartialBackwards
    takes_tangents: Callable[[Sequence[Any]], bool]
    views: Mapping[int, Callable[[Sequence[Any], Any], Any]]


class _Alias:
    """Hides a tensor from the autograd engine."""

    __slots__ = ("tensor",)

    def __init__(self, tensor: Any) -> None:
        self.tensor = tensor


def differentiable_call(graphs: TrainingGraphs) -> FlatCall:
    """A flat call that the autograd engine can differentiate, even if compiled and called with grad mode off.

    A program may enable grad mode inside ``no_grad``.
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
    """The inputs, with copies of those that the backward needs from before the call's own updates.

    Autograd counts versions per storage, so a tensor that shares storage with a mutated one is copied too. So are
    inputs whose new history will reference this call: the call must not reference them in turn.
    """
    changed = {inputs[number].untyped_storage()._cdata for number in facts.updated}
    copied = {number for number, visible in zip(facts.updated, facts.differentiable, strict=False) if visible}
    copied.update(i for i in facts.relevant if inputs[i].untyped_storage()._cdata in changed)
    apart = [value.clone() if i in copied else value for i, value in enumerate(inputs)]
    for number in facts.laid_out:
        # Gradients of gradients start from what it was.
        apart[number] = apart[number].view_as(apart[number])
    return apart


def _autograd_function(graphs: TrainingGraphs) -> type[torch.autograd.Function]:
    facts = graphs.facts
    count, saved_count = facts.result_count, facts.saved_tensor_count
    forward_graph, backward_graph = graphs.forward, graphs.backward
    special = [i for i in range(count) if facts.opaque[i] or facts.detached[i]]
    constant = [i for i in range(count) if not facts.differentiable[i] and not facts.opaque[i]]
    with_tangent = [i for i in range(count) if facts.differentiable[i]]
    orders, relevant, late = facts.tangent_orders, facts.relevant, len(facts.late_updates)
    updated = [(i, number) for i, number in enumerate(facts.updated) if not facts.differentiable[i]]
    partial_backwards: dict[tuple[bool, ...], PartialBackward | None] = {}
    sizes_start, is_plain, is_random = count + saved_count, not special and not constant, facts.is_random
    writes, takes_tangents, views = facts.writes, graphs.takes_tangents, tuple(graphs.views.items())

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
            # Autograd would regenerate the history of a view whose base was written into meanwhile.
            ctx.save_for_backward(*(map(_own, outputs[count:sizes_start]) if writes else outputs[count:sizes_start]))
            ctx.symints = outputs[sizes_start:]
            ctx.set_materialize_grads(False)
            results = [_own(result) for result in outputs[:count]]
            for i, view in views:
                results[i] = view(inputs, results[i])
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
            for tangent in tangents:
                if tangent is None:
                    return _gradients_of_some(ctx, graphs, tangents, partial_backwards)
            if torch.is_grad_enabled() or not takes_tangents(tangents):
                # A custom backward may behave differently for a tangent of another type: it has to run.
                return _differentiable_gradients(ctx, graphs, tangents)
            tangents = [_in_order(tangent, order) for tangent, order in zip(tangents, orders, strict=True)]
            arguments = [*ctx.symints, *ctx.saved_tensors, *tangents]
            if not torch._C._autograd._get_current_graph_task_keep_graph():
                # From here on only the list references the saved tensors, so that the graph can free them early.
                ctx.primals = None
                ctx.maybe_clear_saved_tensors()
            if late:
                return _gradients_and_updates(backward_graph, arguments, ctx.written_late)
            return tuple(backward_graph(arguments))

    return CompiledFunction


def _own(result: Any) -> Any:
    """The result as a tensor that callers may write into: autograd forbids it for views that it did not record.

    Results that the caller must see as views are regenerated later (``alias_regeneration``).
    """
    return result.detach() if isinstance(result, torch.Tensor) and result._is_view() else result


def _gradients_of_some(
    ctx: Any,
    graphs: TrainingGraphs,
    tangents: Sequence[torch.Tensor | None],
    made: dict[tuple[bool, ...], PartialBackward | None],
) -> Any:
    """The gradients if some results are in no loss: as in eager, what only these depend on is not computed.

    Zero tangents for them would be wrong: times an infinite derivative they are NaN, and inputs that lead to no other
    result would get a gradient instead of None.
    """
    given = tuple(tangent is not None for tangent in tangents)
    if not any(given):
        return (None,) * len(ctx.needs_input_grad)
    if torch.is_grad_enabled() or not graphs.takes_tangents(tangents):
        return _differentiable_gradients(ctx, graphs, tangents)
    saved = [*ctx.symints, *ctx.saved_tensors]
    if given not in made:
        made[given] = graphs.partial(ctx.primals, given)
    partial = made[given]
    if partial is None:
        return _differentiable_gradients(ctx, graphs, tangents)
    facts = graphs.facts
    ordered = [
        _in_order(tangent, order)
        for tangent, order in zip(tangents, facts.tangent_orders, strict=True)
        if tangent is not None
    ]
    if any(place < 0 for place in partial.taken):
        _check_unchanged(ctx, facts)
    arguments = [*(saved[place] if place >= 0 else ctx.primals[~place] for place in partial.taken), *ordered]
    del saved
    if not torch._C._autograd._get_current_graph_task_keep_graph():
        ctx.primals = None
        ctx.maybe_clear_saved_tensors()
    if not facts.late_updates:
        return tuple(partial.graph(arguments))
    late = dict(zip(facts.late_updates, ctx.written_late, strict=True))
    found = _gradients_and_updates(partial.graph, arguments, [late[number] for number in partial.late_updates])
    return (*found, *(None,) * (len(late) - len(partial.late_updates)))


def _gradients_and_updates(graph: BoxedCall, arguments: list[Any], written: Sequence[torch.Tensor]) -> tuple[Any, ...]:
    """Run a backward that writes into tensors, with their current values; returns its gradients."""
    results = graph([*arguments, *written])
    start = len(results) - len(written)
    with torch.no_grad():
        for tensor, value in zip(written, results[start:], strict=True):
            tensor.copy_(value)
    return (*results[:start], *(None,) * len(written))


def _in_order(tangent: torch.Tensor, order: tuple[int, ...] | None) -> torch.Tensor:
    """The tangent in the memory order that the backward was traced with; ``order`` is from outermost to innermost."""
    if order is None:
        return tangent.contiguous() if tangent.layout is torch.strided else tangent
    places = [order.index(dim) for dim in range(len(order))]
    return tangent.permute(order).contiguous().permute(places)


def _differentiable_gradients(ctx: Any, graphs: TrainingGraphs, tangents: Sequence[torch.Tensor | None]) -> Any:
    # Raises, as in eager, if the first backward freed the saved tensors.
    _ = ctx.saved_tensors
    if graphs.facts.late_updates:
        raise RuntimeError(
            "gradients of gradients are not computed for a compiled function whose backward writes into tensors"
        )
    _check_unchanged(ctx, graphs.facts)
    primals = ctx.primals
    if not graphs.facts.is_random:
        return tuple(graphs.second_order([*primals, *tangents]))
    with torch.random.fork_rng(devices=[]):
        torch.set_rng_state(ctx.random_state)
        return tuple(graphs.second_order([*primals, *tangents]))


def _check_unchanged(ctx: Any, facts: TrainingFacts) -> None:
    """Raise, as eager does for saved tensors, if a primal that gradients are computed from was written into."""
    if any(ctx.primals[i]._version != version for i, version in zip(facts.relevant, ctx.versions, strict=True)):
        raise RuntimeError(
            "one of the variables needed for gradient computation has been modified by an inplace operation: "
            "an input of a compiled function was changed between its forward and its backward"
        )


def reads_grad_mode(graph: fx.Graph) -> bool:
    return any(Fact.WORKSPACE in facts_of(node) for node in graph.nodes)


def in_grad_mode(call: BoxedCall) -> BoxedCall:
    """``call``, a compiled graph that depends on grad mode, for use with grad mode off."""

    def call_in_grad_mode(inputs: list[Any]) -> Sequence[Any]:
        with torch.enable_grad():
            return call([value.detach() if isinstance(value, torch.Tensor) else value for value in inputs])

    return call_in_grad_mode


class _GraphInside(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, anchor: torch.Tensor, is_freed: bool) -> torch.Tensor:
        ctx.is_freed = is_freed
        return value.detach()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        if ctx.is_freed:
            raise RuntimeError(
                "Trying to backward through the graph a second time: the compiled program that returned this tensor "
                "has run its backward already, and freed what it had saved. Run the backward outside, or take it as a "
                "value."
            )
        return None, None, None


def with_graph_inside(value: torch.Tensor, *, is_freed: bool) -> torch.Tensor:
    """``value`` as a result that requires grad, whose autograd graph reaches no input, or is freed."""
    with torch.enable_grad():
        anchor = torch.empty(0, requires_grad=True)
        result: torch.Tensor = _GraphInside.apply(value, anchor, is_freed)  # type: ignore[no-untyped-call]
    return result
