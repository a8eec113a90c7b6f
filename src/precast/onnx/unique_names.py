"""Gives every value of a model a name of its own, those of subgraphs included.

Before: ``y = If(p, then={val_3 = Sin(x)}); val_3 = Neg(y)``
After:  ``y = If(p, then={val_3_1 = Sin(x)}); val_3 = Neg(y)``

Onnx_ir's own pass lets a subgraph use a name that the outer graph uses further down; onnxruntime does not.
"""

from collections.abc import Iterator

import onnx_ir as ir


def make_names_unique(model: ir.Model) -> None:
    """Change ``model`` in place; values of the outermost graph keep their names."""
    taken: dict[str, ir.Value] = {}
    for graph in _graphs(model):
        for value in _values(graph):
            assert value.name is not None, "names were given before"
            if taken.setdefault(value.name, value) is not value:
                value.name = _free(value.name, taken)
                taken[value.name] = value


def _graphs(model: ir.Model) -> Iterator[ir.Graph]:
    yield model.graph
    yield from (graph for graph in model.graph.subgraphs() if isinstance(graph, ir.Graph))


def _values(graph: ir.Graph) -> Iterator[ir.Value]:
    yield from graph.inputs
    yield from graph.initializers.values()
    yield from (value for node in graph for value in node.outputs)


def _free(name: str, taken: dict[str, ir.Value]) -> str:
    number = 1
    while f"{name}_{number}" in taken:
        number += 1
    return f"{name}_{number}"
