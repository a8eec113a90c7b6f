"""Runs a forward graph in grad mode where it holds kernels that look at it.

Before: ``forward([x])`` where grad mode is off, as it is inside of autograd's nodes: the kernel leaves no workspace
After:  ``forward([x.detach()])`` where it is on: the workspace is there, and autograd still records nothing
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from precast.autograd.boxing import BoxedCall
from precast.ops.facts import Fact, facts_of


def reads_grad_mode(graph: fx.Graph) -> bool:
    return any(Fact.WORKSPACE in facts_of(node) for node in graph.nodes)


def in_grad_mode(call: BoxedCall) -> BoxedCall:
    """``call``, a compiled graph that looks at grad mode, for use where that is off."""

    def call_in_grad_mode(inputs: list[Any]) -> Sequence[Any]:
        with torch.enable_grad():
            return call([value.detach() if isinstance(value, torch.Tensor) else value for value in inputs])

    return call_in_grad_mode
