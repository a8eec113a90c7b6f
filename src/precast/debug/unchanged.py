"""Compilers that leave the graph as it is: to check that capture alone is right, and to read what was captured."""

from collections.abc import Sequence

from torch import fx


def nop(graph_module: fx.GraphModule, example_inputs: Sequence[object]) -> fx.GraphModule:
    """Run the graph as it was captured."""
    return graph_module


def print_compile(graph_module: fx.GraphModule, example_inputs: Sequence[object]) -> fx.GraphModule:
    """Print the graph as Python, then run it as it was captured."""
    print(python_text(graph_module))
    return graph_module


def python_text(graph_module: fx.GraphModule) -> str:
    """Return the code of the graph, then that of the branches of its control flow."""
    parts = [graph_module.code.strip()]
    for path, child in graph_module.named_modules():
        if path and isinstance(child, fx.GraphModule):
            parts.append(f"# self.{path}\n{child.code.strip()}")
    return "\n\n\n".join(parts)
