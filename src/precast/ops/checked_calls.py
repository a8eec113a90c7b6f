"""Operators that do not look at their arguments, called once these are known to fit."""

from collections.abc import Callable
from functools import cache
from typing import Any

from torch import fx
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import is_fake

from precast.errors import InputValueError
from precast.ops.fitting_arguments import RULES


def is_checked(target: object) -> bool:
    """Whether calls of an operator are to be looked at first."""
    return isinstance(target, OpOverload) and target._schema.name.removeprefix("aten::") in RULES


@cache
def checked(operator: OpOverload) -> Callable[..., Any]:
    """The operator, which raises where its arguments do not fit. Fake tensors have nothing that could be read."""
    name = operator._schema.name.removeprefix("aten::")
    rule = RULES[name]

    def call(*args: Any, **kwargs: Any) -> Any:
        given = {each.name: each.default_value for each in operator._schema.arguments}
        given |= dict(zip(given, args, strict=False)) | kwargs
        if not any(map(is_fake, given.values())) and not rule(given):
            raise InputValueError(
                f"{operator} was called with arguments that do not fit together.",
                why="it would read or write outside of its tensors",
                fix="Get the program again from where it was made, or give it the inputs that it was made for.",
            )
        return operator(*args, **kwargs)

    call.__name__ = call.__qualname__ = f"checked_{name}"
    return call


def check_calls(graph: fx.Graph) -> None:
    """Put checked operators in the place of those that do not look, in this graph."""
    for node in graph.nodes:
        if is_checked(node.target):
            node.target = checked(node.target)


def with_checked_calls(module: fx.GraphModule) -> fx.GraphModule:
    """A copy of the module and of the graphs of its control flow with such calls; itself, where there are none."""
    children = {name: child for name, child in module.named_children() if isinstance(child, fx.GraphModule)}
    copies = {name: with_checked_calls(child) for name, child in children.items()}
    is_same = all(copies[name] is children[name] for name in children)
    if is_same and not any(is_checked(node.target) for node in module.graph.nodes):
        return module
    graph = fx.Graph()
    graph.output(graph.graph_copy(module.graph, {}))
    check_calls(graph)
    copy = fx.GraphModule(module, graph, type(module).__name__)
    for name, child in copies.items():
        copy.add_module(name, child)
    return copy
