"""Finds the inputs of a program whose ``.grad`` it uses.

Inputs stand for the caller's tensors while a program is traced. They are leaves of autograd's graph as those are, so
that a backward inside of the program adds to their ``.grad`` as it would to the caller's.
"""

import warnings
from collections.abc import Sequence
from typing import Any

import torch

from precast.errors import CaptureError
from precast.ir.gradient_inputs import GradientInputs, has_hooks
from precast.tracing.provenance import innermost_users_line

_ATTRIBUTE: Any = torch.Tensor.grad
_ACCESSORS = frozenset(getattr(_ATTRIBUTE, name) for name in ("__get__", "__set__", "__delete__"))
_METHOD = type(_ATTRIBUTE.__get__)


def is_gradient_access(function: Any) -> bool:
    """Whether a torch function is the reading, writing or deleting of ``.grad``."""
    return type(function) is _METHOD and function in _ACCESSORS


class GradientSearch:
    """Finds the inputs whose ``.grad`` a run uses.

    ``known`` are the caller's tensors that were found by an earlier run: a backward adds to what is there, which only
    shows afterwards.
    """

    def __init__(self, known: Sequence[torch.Tensor] = ()) -> None:
        self._tensors: dict[int, torch.Tensor] = {}
        self._inputs: dict[int, torch.Tensor] = {}
        self._known = {id(tensor) for tensor in known}
        self.found: dict[int, torch.Tensor] = {id(tensor): tensor for tensor in known}
        self.lines: list[str] = []
        self.is_late = False
        """Whether a gradient came before its input was known to have one already."""

    def meet(self, tensor: torch.Tensor, stand_in: torch.Tensor) -> None:
        """Note which input stands for one of the caller's tensors."""
        self._tensors[id(stand_in)] = tensor
        self._inputs[id(stand_in)] = stand_in
        if id(tensor) in self._known:
            self._give(tensor, stand_in)

    def touch(self, stand_in: Any) -> None:
        """An input's ``.grad`` is about to be used."""
        tensor = self._tensors.get(id(stand_in))
        if tensor is None or id(tensor) in self.found:
            return
        if (gradient := _gradient(tensor)) is not None and gradient.layout is not torch.strided:
            raise CaptureError(
                "The program uses a sparse gradient.",
                at=innermost_users_line(),
                why="compiled graphs compute dense tensors",
                fix="Use sparse=False in the embedding.",
            )
        self.found[id(tensor)] = tensor
        if (line := innermost_users_line()) is not None:
            self.lines.append(line)
        if _gradient(stand_in) is None:
            self._give(tensor, stand_in)
        elif tensor.grad is not None:
            self.is_late = True

    def finish(self, *, runs_backward: bool) -> None:
        """Note the inputs that a backward gave gradients to and nothing else asked for."""
        for stand_in in self._inputs.values():
            if stand_in.is_leaf and stand_in.grad is not None:
                self.touch(stand_in)
        tensors = self._tensors.values() if runs_backward else ()
        if any(tensor.requires_grad and (has_hooks(tensor) or tensor.retains_grad) for tensor in tensors):
            raise CaptureError(
                "The program runs a backward that reaches a tensor with hooks, or one that keeps its gradient.",
                why="hooks are called with real tensors, which a graph does not have",
                fix="Run the backward outside of the program.",
            )

    def _give(self, tensor: torch.Tensor, stand_in: torch.Tensor) -> None:
        if tensor.grad is not None:
            stand_in.grad = torch.empty_strided(
                tensor.grad.shape, tensor.grad.stride(), dtype=tensor.grad.dtype, device=tensor.grad.device
            )


def _gradient(tensor: torch.Tensor) -> torch.Tensor | None:
    with warnings.catch_warnings():
        # Torch warns of results of something, which seldom have one.
        warnings.simplefilter("ignore")
        return tensor.grad


def gradient_inputs(found: Sequence[torch.Tensor], inputs: Sequence[Any]) -> GradientInputs:
    """The owners among a call's inputs, which are the caller's tensors."""
    positions: dict[int, list[int]] = {}
    for position, value in enumerate(inputs):
        positions.setdefault(id(value), []).append(position)
    for tensor in found:
        if len(positions[id(tensor)]) > 1:
            raise CaptureError(
                "The program uses .grad of a tensor that it is given twice.",
                why="two inputs stand for the tensor, and only one of them would get the gradient",
                fix="Pass the tensor once.",
            )
    owners = [(positions[id(tensor)][0], tensor.grad is not None) for tensor in found]
    return GradientInputs(tuple(owner for owner, _ in owners), tuple(present for _, present in owners))
