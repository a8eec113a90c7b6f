"""A step as a program: flat, functional, over all state that it reads, with its updates as outputs.

Before: ``StepModule(...)(batch)``
After:  ``graph(p_model…, b_optimizer_state…, b_optimizer_groups_0_lr, batch…) -> (updates, loss, aux)``
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from precast.errors import InputValueError
from precast.export.program import ExportedProgram, Origin
from precast.export.signature import Dialect
from precast.export.tidy import named_outputs, tidied
from precast.native.graph_passes.numbers_in_tensors import keep_numbers_in_tensors
from precast.trace.capture import capture
from precast.trace.capture.prepare import prepare
from precast.trace.functionalize import functionalize
from precast.trace.retrace import remove_dead_nodes
from precast.trace.session import tracing_session
from precast.training.recompute import within_budget
from precast.training.skipping import skip_unless_finite


def capture_step(
    module: torch.nn.Module,
    batch: Any,
    dynamic_shapes: Any = None,
    *,
    skips_nonfinite: bool = False,
    memory_budget: float | None = None,
) -> ExportedProgram:
    """Record what ``module(batch)`` does, gradients and updates inside."""
    _refuse_autocast()
    shapes = None if dynamic_shapes is None else {"batch": dynamic_shapes}
    program = capture(module, (batch,), dynamic_shapes=shapes)
    program = functionalize(program, keep_aliases=False)
    if skips_nonfinite:
        program = skip_unless_finite(program)
    program = tidied(program)
    # Learning rates and counts of steps are computed with as Python would, but no file can hold Python's numbers.
    exact = keep_numbers_in_tensors(program.module)
    if exact is not program.module:
        remove_dead_nodes(exact.graph)
        program = program.replace(module=exact)
        program = tidied(program)
        program = program.replace(signature=program.signature.replace(outputs=named_outputs(program)))
    if memory_budget is not None:
        program = within_budget(program, memory_budget)
    return ExportedProgram(program, Origin(("batch",), example_inputs=((batch,), {})), dialect=Dialect.ATEN)


def run_on_fakes(module: torch.nn.Module, batch: Any) -> None:
    """Run a step once, on tensors without data, to watch what it looks at."""
    with tracing_session():
        prepare(module, (batch,), takes_fakes=True)


@contextmanager
def gradients_set_aside(parameters: Sequence[torch.Tensor]) -> Iterator[None]:
    """While active, no parameter has a gradient from before: a step begins by clearing them."""
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
    """While active, all of the model is in eval mode."""
    before = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, was_training in before:
            module.training = was_training


def _refuse_autocast() -> None:
    if torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"):
        raise InputValueError(
            "A training step is captured under autocast.",
            why="the backward and the update would be cast too, which they are not where autocast ends with the loss",
            fix="Enter autocast inside of the loss function: with torch.autocast('cpu', torch.bfloat16): return …",
        )
