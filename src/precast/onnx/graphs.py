"""The graphs of a model: its own, those of its functions, and those inside of nodes."""

from collections.abc import Iterator

import onnx_ir as ir

REGIONS = "precast.regions"
"""The domain of the model's own functions: regions that are compiled once."""


def outermost_graphs(model: ir.Model) -> list[ir.Graph]:
    """The graph of the model, and those of its functions."""
    return [model.graph, *(function.graph for function in model.functions.values())]


def all_nodes(model: ir.Model) -> Iterator[ir.Node]:
    """Every node of the model: in its graph, its functions, and the graphs inside of them."""
    for graph in outermost_graphs(model):
        yield from graph.all_nodes()


def custom_domains(graph: ir.Graph) -> dict[str, int]:
    """The versions of the domains beyond ONNX's own whose operators a graph calls."""
    return {node.domain: node.version for node in graph.all_nodes() if node.domain and node.version}
