"""Runs an existing graph as a flat function again, so that a stage can record it in another form."""

from typing import Any

from torch import fx

from precast.tracing.provenance import attributed_to
from precast.tracing.trace import FlatFunction


class _AttributingInterpreter(fx.Interpreter):
    """Interprets node by node; what is recorded meanwhile is attributed to the node that runs."""

    def run_node(self, n: fx.Node) -> Any:
        with attributed_to(n):
            return super().run_node(n)


def as_flat_function(module: fx.GraphModule) -> FlatFunction:
    """A function over the graph's flat inputs that gives its flat outputs."""

    def run(*inputs: Any) -> list[Any]:
        return list(_AttributingInterpreter(module).run(*inputs))

    return run
