"""What each node of a graph computes on given inputs."""

from collections.abc import Callable, Sequence
from contextlib import suppress

import torch
from torch import fx

from precast.errors import PrecastError

WHAT_OPS_RAISE = (RuntimeError, ValueError, TypeError, LookupError, ArithmeticError, AssertionError, PrecastError)

Receive = Callable[[fx.Node, object], None]


class _Recorder(fx.Interpreter):
    def __init__(self, graph_module: fx.GraphModule, receive: Receive):
        super().__init__(graph_module)
        self.extra_traceback = False
        self._receive = receive

    def run_node(self, n: fx.Node) -> object:
        result: object = super().run_node(n)
        self._receive(n, result)
        return result


def node_values(graph_module: fx.GraphModule, inputs: Sequence[object]) -> dict[str, object]:
    """Return the tensors and numbers that nodes compute, by name; up to where the graph raises, if it does."""
    values: dict[str, object] = {}

    def keep(node: fx.Node, value: object) -> None:
        if isinstance(value, torch.Tensor | int | float):
            values[node.name] = value

    record_node_values(graph_module, inputs, keep)
    return values


def record_node_values(graph_module: fx.GraphModule, inputs: Sequence[object], receive: Receive) -> None:
    """Hand each node's value to ``receive`` as soon as it is there, up to where the graph raises, if it does."""
    with suppress(*WHAT_OPS_RAISE), torch.no_grad():
        _Recorder(graph_module, receive).run(*inputs)
