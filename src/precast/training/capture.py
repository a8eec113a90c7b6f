"""Captures a step as a program: flat, functional, over all state that it reads, with its updates as outputs.

Before: ``StepModule(...)(batch)``
After:  ``graph(p_model…, b_optimizer_state…, b_optimizer_groups_0_lr, batch…) -> (updates, loss, aux)``
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any
from unittest.mock import patch

import torch

from precast.export.program import ExportedProgram, Origin
from precast.export.signature import Dialect
from precast.export.stored_tensors import without_stored_outputs, without_stored_tensors
from precast.export.tidy import named_outputs, tidied
from precast.graph.program import Program
from precast.native.graph_passes.numbers_in_tensors import keep_numbers_in_tensors
from precast.trace.capture import capture
from precast.trace.capture.prepare import prepare
from precast.trace.eager.symbolic_numbers import extremes_of_symbols
from precast.trace.functionalize import functionalize
from precast.trace.retrace import remove_dead_nodes
from precast.trace.session import tracing_session
from precast.trace.state.python_state import StoredTensorError
from precast.trace.state.stored import Stored
from precast.training.recompute import within_budget
from precast.training.skipping import skip_unless_finite


def capture_step(
    module: torch.nn.Module,
    batch: Any,
    dynamic_shapes: Any = None,
    *,
    skips_nonfinite: bool = False,
    memory_budget: float | None = None,
    tell_stored: Callable[[Stored], object] | None = None,
) -> ExportedProgram:
    """Capture ``module(batch)``, including gradients and updates.

    With ``tell_stored``, what it leaves in Python's state is reported, and its traced values are further results.
    """
    with _recurrence_in_steps():
        program = _capturing(batch, dynamic_shapes)(module, returns_leaks=True, tell_stored=tell_stored)
    if tell_stored is None:
        program = without_stored_outputs(program)
    program = functionalize(program, keep_aliases=False)
    if skips_nonfinite:
        program = skip_unless_finite(program, is_pair=tell_stored is not None)
    program = _with_exact_numbers(tidied(program))
    if memory_budget is not None:
        program = within_budget(program, memory_budget)
    return _exported(program, batch)


def capture_evaluation(module: torch.nn.Module, batch: Any, dynamic_shapes: Any = None) -> ExportedProgram:
    """Capture ``module(batch)`` without gradients; what it stores in Python's state must not matter to later calls."""
    record = _capturing(batch, dynamic_shapes)
    with _recurrence_in_steps():
        try:
            program = record(module)
        except StoredTensorError:
            storing = partial(record, returns_leaks=True)
            found = without_stored_tensors(storing, module, (batch,), {}, forgets_calls=True)
            if found is None:
                raise
            program = found
    return _exported(_with_exact_numbers(tidied(functionalize(program, keep_aliases=False))), batch)


def _capturing(batch: Any, dynamic_shapes: Any) -> Callable[..., Program]:
    shapes = None if dynamic_shapes is None else {"batch": dynamic_shapes}
    return partial(capture, args=(batch,), dynamic_shapes=shapes)


def _exported(program: Program, batch: Any) -> ExportedProgram:
    return ExportedProgram(program, Origin(("batch",), example_inputs=((batch,), {})), dialect=Dialect.ATEN)


def _with_exact_numbers(program: Program) -> Program:
    # Learning rates and step counts are computed like Python numbers, which no file can hold.
    exact = keep_numbers_in_tensors(program.module)
    if exact is program.module:
        return program
    remove_dead_nodes(exact.graph)
    program = tidied(program.replace(module=exact))
    return program.replace(signature=program.signature.replace(outputs=named_outputs(program)))


def run_on_fakes(module: torch.nn.Module, batch: Any) -> None:
    """Run a step once on fake tensors, to observe what it reads."""
    with tracing_session(), extremes_of_symbols():
        prepare(module, (batch,), takes_fakes=True, returns_leaks=True)


@contextmanager
def _recurrence_in_steps() -> Iterator[None]:
    """While active, LSTMs are recorded step by step: oneDNN's layers have a workspace for their backward, which torch
    creates in grad mode only, and compiled steps run without it.
    """
    lstm = torch._VF.lstm

    def in_steps(*arguments: Any) -> Any:
        before = torch._C._get_mkldnn_enabled()
        torch._C._set_mkldnn_enabled(False)
        try:
            return lstm(*arguments)
        finally:
            torch._C._set_mkldnn_enabled(before)

    with patch.object(torch._VF, "lstm", in_steps):
        yield


@contextmanager
def gradients_set_aside(parameters: Sequence[torch.Tensor]) -> Iterator[None]:
    """While active, no parameter has an old gradient, since a step begins by clearing them."""
    before = [parameter.grad for parameter in parameters]
    for parameter in parameters:
        parameter.grad = None
    try:
        yield
    finally:
        for parameter, gradient in zip(parameters, before, strict=True):
            parameter.grad = gradient


@contextmanager
def evaluating(model: torch.nn.Module) -> Iterator[None]:
    """While active, the whole model is in eval mode."""
    before = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, was_training in before:
            module.training = was_training
