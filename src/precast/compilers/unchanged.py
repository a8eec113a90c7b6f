"""Compilers that leave the graph as it is: to check that capture alone is right, and to read what was captured."""

from collections.abc import Sequence

from torch import fx


def nop(graph_module: fx.GraphModule, example_inputs: Sequence[object]) -> fx.GraphModule:
    """Run the graph as it was captured."""
    return graph_module


def print_compile(graph_module: fx.GraphModule, example_inputs: Sequence[object]) -> fx.GraphModule:
    """Print the graph as Python, then run it as it was captured."""
    print(graph_module.code.strip())
    return graph_module
