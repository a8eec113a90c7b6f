"""Traces the graphs that compilers get: the joint graph for training, or only the forward for inference."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx

from precast.autograd.boundary.subclasses import Layout, PlainFunction, layout_of, plain_count, unwrap
from precast.events import stage
from precast.graph.boundary import BoundaryFacts
from precast.graph.nodes import placeholders_of
from precast.trace.boundary_outputs import returning_boundary
from precast.trace.capture.failures import explained_failures
from precast.trace.fake_inputs import FakeInputs, fresh_copies
from precast.trace.functionalize import functionalized
from precast.trace.joint import Joint, tangents_for
from precast.trace.record import (
    Decompositions,
    FlatFunction,
    computing_sizes_when_used,
    rename_placeholders,
    trace,
)
from precast.trace.retrace import remove_dead_nodes
from precast.trace.runtime_asserts import may_fail, record_constants, record_runtime_asserts


@dataclass(frozen=True)
class TracedGraph:
    """A functional graph over plain tensors, and the layouts of the values around it.

    ``inputs`` are the layouts of the primals, ``tangents`` of the inputs after them, ``results`` of all results. The
    last inputs and results of a joint graph belong to ``late_updates``, the primals that the backward writes into.
    """

    module: fx.GraphModule
    inputs: tuple[Layout, ...]
    tangents: tuple[Layout, ...]
    results: tuple[Layout, ...]
    late_updates: tuple[int, ...] = ()


@stage
def trace_joint(
    function: FlatFunction,
    inputs: Sequence[Any],
    fakes: FakeInputs,
    facts: BoundaryFacts,
    *,
    decompositions: Decompositions | None,
    module_names: Mapping[int, str],
    is_functional: bool = True,
) -> TracedGraph:
    """``primals_1…n, tangents_1…m -> (updated inputs, outputs, bases, gradients)`` as one graph."""
    joint = Joint(function, facts)
    while True:
        with fakes.mode:
            primals = fresh_copies(inputs)
            tangents = [*tangents_for(facts), *(_like(primals[number]) for number in joint.late_updates)]
        traced = _trace_plain(
            joint,
            primals,
            tangents,
            fakes,
            decompositions=decompositions,
            module_names=module_names,
            is_functional=is_functional,
        )
        if joint.seen == joint.late_updates:
            _take_current(traced.module, len(joint.seen))
            return replace(traced, late_updates=joint.seen)
        joint = Joint(function, facts, joint.seen)


def _like(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device)


def _take_current(module: fx.GraphModule, count: int) -> None:
    """Use the late values of inputs directly: a copy into their earlier values would need those, too."""
    placeholders = placeholders_of(module.graph)
    for current in placeholders[len(placeholders) - count :]:
        for node in list(current.users):
            if node.target is torch.ops.aten.copy.default and node.args[1] is current:
                node.replace_all_uses_with(current)
    remove_dead_nodes(module.graph)
    module.recompile()


@stage
def trace_inference(
    function: FlatFunction,
    inputs: Sequence[Any],
    fakes: FakeInputs,
    facts: BoundaryFacts,
    *,
    decompositions: Decompositions | None,
    module_names: Mapping[int, str],
    is_functional: bool = True,
) -> TracedGraph:
    """``arg0_1…  -> (updated inputs, outputs, bases)`` as a functional graph."""
    with fakes.mode:
        copies = fresh_copies(inputs)
    return _trace_plain(
        returning_boundary(function, facts),
        copies,
        None,
        fakes,
        decompositions=decompositions,
        module_names=module_names,
        is_functional=is_functional,
    )


def _trace_plain(
    function: FlatFunction,
    inputs: Sequence[Any],
    tangents: Sequence[Any] | None,
    fakes: FakeInputs,
    *,
    decompositions: Decompositions | None,
    module_names: Mapping[int, str],
    is_functional: bool = True,
) -> TracedGraph:
    """Trace over the plain tensors inside the values; ``tangents`` are None unless it is a joint graph."""
    values = [*inputs, *(tangents or ())]
    layouts = tuple(layout_of(value) for value in values)
    needs_grad = tuple(isinstance(value, torch.Tensor) and value.requires_grad for value in values)
    plain_function = PlainFunction(function, layouts, needs_grad)
    # A user-defined backward runs here for the first time.
    with explained_failures():
        module = trace(
            computing_sizes_when_used(functionalized(plain_function) if is_functional else plain_function),
            unwrap(values, layouts),
            fakes.mode,
            decompositions=decompositions,
            module_names=module_names,
        )
    if may_fail(module, fakes.mode):
        record_constants(module, fakes.mode)
        record_runtime_asserts(module, fakes.mode)
    primals, others = layouts[: len(inputs)], layouts[len(inputs) :]
    names = _input_names(plain_count(primals), plain_count(others), is_joint=tangents is not None)
    return TracedGraph(tidy(rename_placeholders(module, names)), primals, others, tuple(plain_function.outputs))


def _input_names(primals: int, tangents: int, *, is_joint: bool) -> list[str]:
    if not is_joint:
        return [f"arg{i}_1" for i in range(primals)]
    return [f"primals_{i + 1}" for i in range(primals)] + [f"tangents_{i + 1}" for i in range(tangents)]


def tidy(module: fx.GraphModule) -> fx.GraphModule:
    """Drop what tracing leaves behind: detached aliases, and dead nodes."""
    for node in module.graph.nodes:
        # A detached alias has the same memory, and so, in a graph, the same value.
        if node.target is torch.ops.aten.detach.default:
            node.replace_all_uses_with(node.args[0])
    remove_dead_nodes(module.graph)
    module.recompile()
    return module
