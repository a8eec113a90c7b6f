"""The two ends of a flat graph."""

from typing import cast

from torch import fx
from torch.fx.node import Argument


def placeholders_of(graph: fx.Graph) -> list[fx.Node]:
    """The graph's inputs, in order."""
    return [node for node in graph.nodes if node.op == "placeholder"]


def results_of(graph: fx.Graph) -> tuple[Argument, ...]:
    """What a flat graph returns: nodes and plain constants, in order."""
    results = graph.output_node().args[0]
    assert isinstance(results, (tuple, list)), "a flat graph returns one flat sequence"
    return tuple(cast("tuple[Argument, ...]", results))
