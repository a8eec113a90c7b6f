"""What the routines of the support library compute, said with torch: the oracle for library calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

Tensors = Sequence[torch.Tensor]


def run_routine(routine: str, inputs: Tensors, numbers: Sequence[int]) -> Tensors:
    """The outputs of a library call."""
    return _ROUTINES[routine](inputs, numbers)


def _matmul(inputs: Tensors, _: Sequence[int]) -> Tensors:
    left, right = inputs
    return (left @ right,)


_ROUTINES: dict[str, Callable[[Tensors, Sequence[int]], Tensors]] = {"matmul": _matmul}
