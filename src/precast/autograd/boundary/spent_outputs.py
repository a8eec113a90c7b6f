"""Outputs of which the program has taken the gradient itself: they require grad, and to take it again is an error.

Before: ``loss``, a plain tensor
After:  ``loss`` with a ``grad_fn`` that raises what eager raises for a graph that was freed
"""

from typing import Any

import torch


class _SpentGraph(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, anchor: torch.Tensor) -> torch.Tensor:
        return value.detach()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        raise RuntimeError(
            "Trying to backward through the graph a second time: the compiled program that returned this tensor has "
            "run its backward already, and freed what it had saved. Run the backward outside, or take it as a value."
        )


def spent(value: torch.Tensor) -> torch.Tensor:
    """``value`` as a result whose graph is freed."""
    with torch.enable_grad():
        result: torch.Tensor = _SpentGraph.apply(value, torch.empty(0, requires_grad=True))  # type: ignore[no-untyped-call]
    return result
