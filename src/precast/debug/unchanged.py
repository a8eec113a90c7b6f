"""Compilers that leave the graph unchanged: to check that capture alone is correct, and to read what was captured."""

from collections.abc import Sequence

from torch import fx


def nop(graph_module: fx.GraphModule, example_inputs: Sequence[object]) -> fx.GraphModule:
    """A compiler that returns the graph unchanged."""
    return graph_module


def print_compile(graph_module: fx.GraphModule, example_inputs: Sequence[object]) -> fx.GraphModule:
    """A compiler that prints the graph as Python and returns it unchanged."""
    print(python_text(graph_module))
    return graph_module


def python_text(graph_module: fx.GraphModule) -> str:
    """Return the code of the graph, followed by that of its control-flow branches."""
    parts = [graph_module.code.strip()]
    for path, child in graph_module.named_modules():
        if path and isinstance(child, fx.GraphModule):
            parts.append(f"# self.{path}\n{child.code.strip()}")
    return "\n\n\n".join(parts)
