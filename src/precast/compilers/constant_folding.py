"""Compute once what depends on constants alone.

Before::

    weight    = get_attr[weight]
    positions = arange(128)
    rows      = embedding(weight, positions)
    sum       = add(x, rows)

After::

    rows = get_attr[folded_0]
    sum  = add(x, rows)

What is made from nothing, like ``positions``, stays an operation where others still read it.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter, getitem
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload

from precast.ir.node_meta import has_value, value_of
from precast.ops.facts import Fact, facts_of

MOST_GROWTH = 4
"""A folded constant is at most this many times as large as what it is computed from."""


def fold_constants(module: fx.GraphModule) -> None:
    """Replace, in place, values that depend on ``get_attr`` nodes alone by ``get_attr`` nodes."""
    known: dict[fx.Node, Any] = {}
    sizes: dict[fx.Node, int] = {}
    for node in module.graph.nodes:
        if node.op == "get_attr":
            value = attrgetter(str(node.target))(module)
            if isinstance(value, torch.Tensor):
                known[node], sizes[node] = value, value.numel()
        elif _may_be_folded(node, known):
            value = _computed(node, known)
            size = sum(sizes[each] for each in node.all_input_nodes)
            if all(each.numel() <= MOST_GROWTH * max(size, 1024) for each in _tensors(value)):
                known[node], sizes[node] = value, size
    for node in known:
        is_made_of_constants = node.op == "call_function" and sizes[node] > 0 and isinstance(known[node], torch.Tensor)
        if is_made_of_constants and any(user not in known for user in node.users):
            node.replace_all_uses_with(add_constant(module, node, known[node], like=node, name="folded"))
    module.graph.eliminate_dead_code()


def add_constant(module: fx.GraphModule, before: fx.Node, value: torch.Tensor, *, like: fx.Node, name: str) -> fx.Node:
    """A new attribute of the module that holds ``value``, read in front of ``before``; traced, it looks as ``like``."""
    number = 0
    while hasattr(module, f"{name}_{number}"):
        number += 1
    module.register_buffer(f"{name}_{number}", value, persistent=False)
    with module.graph.inserting_before(before):
        constant = module.graph.get_attr(f"{name}_{number}")
    constant.meta = dict(like.meta)
    return constant


def _may_be_folded(node: fx.Node, known: dict[fx.Node, Any]) -> bool:
    if node.op != "call_function" or not all(each in known for each in node.all_input_nodes) or not has_value(node):
        return False
    if node.target is getitem:
        return True
    if not isinstance(node.target, OpOverload):
        return False
    is_plain = not facts_of(node) & {Fact.RANDOM, Fact.EFFECTFUL, Fact.MUTATING, Fact.DATA_DEPENDENT}
    return is_plain and all(isinstance(each, torch.Tensor) for each in _leaves(value_of(node)))


def _computed(node: fx.Node, known: dict[fx.Node, Any]) -> Any:
    target: Callable[..., Any] = node.target  # type: ignore[assignment]
    args, kwargs = fx.map_arg((node.args, node.kwargs), lambda argument: known[argument])
    with torch.no_grad():
        return target(*args, **kwargs)


def _leaves(value: object) -> tuple[object, ...]:
    return tuple(value) if isinstance(value, tuple | list) else (value,)


def _tensors(value: object) -> list[torch.Tensor]:
    return [each for each in _leaves(value) if isinstance(each, torch.Tensor)]
