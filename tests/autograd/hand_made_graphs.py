"""Small graphs made node by node, so that a test decides about every name and value in them."""

from dataclasses import dataclass

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode

aten = torch.ops.aten
UNARY = (aten.sin.default, aten.cos.default)
BINARY = (aten.add.Tensor, aten.mul.Tensor)


@dataclass(frozen=True)
class Step:
    """One op on an earlier value, and on a second one or a number."""

    operator: torch._ops.OpOverload
    first: int
    second: int | None = None
    number: complex | None = None


@dataclass(frozen=True)
class Recipe:
    """A graph of one input; steps refer to values by number, the input being 0."""

    steps: tuple[Step, ...]
    shape: tuple[int, ...] = (2, 3)
    strides: tuple[int, ...] | None = None
    dtype: torch.dtype = torch.float32
    device: str = "cpu"
    requires_grad: bool = False
    offset: int = 0
    results: tuple[int, ...] = (-1,)


def follow(recipe: Recipe, name: str = "value") -> tuple[fx.GraphModule, list[object]]:
    """The graph of a recipe, with nodes called ``name``, and its example inputs."""
    with FakeTensorMode():
        example = torch.empty(100, dtype=recipe.dtype, device=recipe.device)
        strides = recipe.strides or torch.empty(recipe.shape).stride()
        example = example.as_strided(recipe.shape, strides, recipe.offset).requires_grad_(recipe.requires_grad)
        return finish(recipe, example, name), [example]


def finish(recipe: Recipe, example: torch.Tensor, name: str = "value") -> fx.GraphModule:
    """The graph of a recipe over a given example."""
    graph = fx.Graph()
    nodes = [graph.placeholder(name)]
    nodes[0].meta["val"] = example
    for step in recipe.steps:
        others = [nodes[step.second]] if step.second is not None else [step.number] if step.number is not None else []
        arguments = (nodes[step.first], *others)
        node = graph.create_node("call_function", step.operator, arguments, name=name)
        values = [item.meta["val"] if isinstance(item, fx.Node) else item for item in arguments]
        node.meta["val"] = step.operator(*values)
        nodes.append(node)
    graph.output(tuple(nodes[number] for number in recipe.results))
    return fx.GraphModule(torch.nn.Module(), graph)
