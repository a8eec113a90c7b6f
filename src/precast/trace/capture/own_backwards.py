"""Runs the backwards that a program defines once, unrecorded, to find the tensors and state that they use.

Before: ``Scale.apply(x)``, whose ``backward`` reads a global tensor and appends to a list
After:  the tensor is among those that the program uses; the list is restored, and the program is refused
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from precast.errors import StateMutationError
from precast.graph.opened_objects import opened
from precast.trace.backward_runs import BackwardRuns, noting_backwards
from precast.trace.captured_tensors import CapturedTensors, memory_of
from precast.trace.state.python_state import watched_python_state


def running_own_backwards(
    function: Callable[..., Any], backwards: BackwardRuns, captured: CapturedTensors, inputs: Sequence[Any]
) -> Callable[..., Any]:
    """``function`` followed by the backward of its results, if the program defines any part of that backward."""
    program = noting_backwards(function, backwards)

    def run(*args: Any, **kwargs: Any) -> Any:
        result = program(*args, **kwargs)
        if captured.runs_own_backwards and torch.is_grad_enabled():
            values = (*(captured.substitute(leaf) for leaf in pytree.tree_leaves(opened(result))), *inputs)
            results = [value for value in values if _has_graph(value) and not backwards.has_spent(value, ())]
            _run_backward(function, results, [*inputs, *captured.stand_ins])
            _refuse_written_state(sorted(captured.attributes_written_in_backward))
            _refuse_written_intermediates(captured, [*inputs, *captured.stand_ins])
        return result

    return run


def _has_graph(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.requires_grad and value.grad_fn is not None


def _run_backward(function: Callable[..., Any], results: Sequence[torch.Tensor], inputs: Sequence[Any]) -> None:
    wanted = [value for value in inputs if isinstance(value, torch.Tensor) and value.requires_grad]
    if not results or not wanted:
        return
    with watched_python_state(function, _ignore, returns_writes=True) as written:
        tangents = [torch.empty_like(result) for result in results]
        torch.autograd.grad(results, wanted, tangents, allow_unused=True, retain_graph=True)
    _refuse_written_state([write.path for write in written.writes])


def _refuse_written_state(paths: Sequence[str]) -> None:
    if paths:
        raise StateMutationError(
            f"A backward of the program writes into {', '.join(paths)}.",
            why="a compiled backward computes tensors only; it would be written once, while it is compiled",
            fix="Write what the backward is to count or keep into a tensor, with add_() or copy_().",
        )


def _refuse_written_intermediates(captured: CapturedTensors, inputs: Sequence[Any]) -> None:
    known = {memory_of(value) for value in inputs if isinstance(value, torch.Tensor)}
    if not captured.written_in_backward <= known:
        raise StateMutationError(
            "A backward of the program writes into a tensor that its forward has computed.",
            why="the compiled backward starts from what was saved each time that it runs",
            fix="Write into a copy, or into an input or a buffer.",
        )


def _ignore(before: torch.Tensor, now: torch.Tensor) -> None:
    """Buffers that a backward assigns are reported with its other writes."""
