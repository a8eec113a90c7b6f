"""Partial backwards, for calls that use only some of the results: traced and compiled when first needed.

Before: ``backward(saved, tangents)`` for the tangents of all results
After:  ``backward(part of saved, some of the tangents)``, which computes what eager's autograd engine would
"""

from collections.abc import Sequence
from typing import Any

import torch

from precast.autograd.boundary.autograd_function import PartialBackward, PartialBackwards, TrainingFacts
from precast.autograd.boundary.subclasses import over_wrappers, plain_count
from precast.autograd.call_parts import BACKWARD, Job
from precast.autograd.compile_cache import start_graph
from precast.autograd.compilers_in_use import named_call
from precast.autograd.variants.graphs import trace_joint
from precast.graph.boundary import BoundaryFacts
from precast.partition.saved_values import backward_from_saved
from precast.trace.fake_inputs import FakeInputs
from precast.trace.record import FlatFunction
from precast.trace.session import tracing_session
from precast.trace.storages import noted_memory


def partial_backwards(
    function: FlatFunction,
    inputs: Sequence[Any],
    fakes: FakeInputs,
    facts: BoundaryFacts,
    job: Job,
    training: TrainingFacts,
) -> PartialBackwards:
    """The partial backwards of ``function``, compiled as ``training`` describes. Holds no tensor of a call."""
    ambient, is_enabled = job.ambient(), torch.is_grad_enabled()

    def make(_: Sequence[Any], given: tuple[bool, ...]) -> PartialBackward | None:
        with ambient(), torch.set_grad_enabled(is_enabled), tracing_session(), noted_memory():
            return _compile(function, inputs, fakes, facts, job, training, given)

    return make


def _compile(
    function: FlatFunction,
    inputs: Sequence[Any],
    fakes: FakeInputs,
    facts: BoundaryFacts,
    job: Job,
    training: TrainingFacts,
    given: tuple[bool, ...],
) -> PartialBackward | None:
    if job.compilers.disable_functionalization:
        # In graphs that write into their values, a part may compute something else than in the whole.
        return None
    traced = trace_joint(
        function,
        inputs,
        fakes,
        facts.with_tangents(given),
        decompositions=job.compilers.decompositions,
        module_names=job.module_names,
    )
    count = training.result_count
    found = backward_from_saved(
        traced.module,
        training.saved,
        num_fwd_outputs=plain_count(traced.results[:count]),
        # Primals that are tensor subclasses are several inputs of the graph.
        primals=() if any(traced.inputs) else training.relevant,
    )
    if found is None or not set(traced.late_updates) <= set(training.late_updates):
        return None
    backward, taken = found
    numbers = "_".join(str(number) for number, is_given in enumerate(given) if is_given)
    name = job.compilation.graph_name(f"{BACKWARD}_of_{numbers}")
    call = named_call(start_graph(job.compilers.backward, backward, name)(), name)
    return PartialBackward(over_wrappers(call, traced.tangents, traced.results[count:]), taken, traced.late_updates)
