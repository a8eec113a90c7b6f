"""Compute once what depends on constants alone.

Before::

    weight    = get_attr[weight]
    positions = arange(128)
    rows      = embedding(weight, positions)
    sum       = add(x, rows)

After::

    rows = get_attr[folded_0]
    sum  = add(x, rows)

What is made from nothing, like ``positions``, stays an operation where others still read it; so does a transposed or
sliced constant, which costs nothing to read.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter, getitem
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload

from precast.ir.node_meta import constant_sources_of, has_value, set_constant_sources, value_of
from precast.ops.facts import Fact, facts_of

MOST_GROWTH = 4
"""A folded constant is at most this many times as large as what it is computed from."""


def fold_constants(module: fx.GraphModule) -> None:
    """Replace, in place, values that depend on ``get_attr`` nodes alone by ``get_attr`` nodes."""
    known: dict[fx.Node, Any] = {}
    sizes: dict[fx.Node, int] = {}
    sources: dict[fx.Node, frozenset[str]] = {}
    for node in module.graph.nodes:
        if node.op == "get_attr":
            value = attrgetter(str(node.target))(module)
            if isinstance(value, torch.Tensor):
                known[node], sizes[node], sources[node] = value, value.numel(), constant_sources_of(node)
        elif _may_be_folded(node, known):
            value = _computed(node, known)
            size = sum(sizes[each] for each in node.all_input_nodes)
            if all(each.numel() <= MOST_GROWTH * max(size, 1024) for each in _tensors(value)):
                known[node], sizes[node] = value, size
                sources[node] = frozenset().union(*(sources[each] for each in node.all_input_nodes))
    for node in _read_by_others(known):
        is_made_of_constants = node.op == "call_function" and sizes[node] > 0 and isinstance(known[node], torch.Tensor)
        if is_made_of_constants and node.target not in _FREE_VIEWS:
            folded = add_constant(module, node, known[node], like=node, name="folded", sources=sources[node])
            node.replace_all_uses_with(folded)
    module.graph.eliminate_dead_code()


_aten = torch.ops.aten
_FREE_VIEWS = frozenset({
    _aten.t.default, _aten.transpose.int, _aten.permute.default, _aten.unsqueeze.default, _aten.expand.default,
    _aten.select.int, _aten.slice.Tensor, _aten.detach.default, _aten.alias.default,
})  # fmt: skip
"""Operators whose result is their argument's memory, read by other subscripts."""


def _read_by_others(known: dict[fx.Node, Any]) -> list[fx.Node]:
    """The nodes among ``known`` that are read by what is still computed, or by a view that is."""
    read: set[fx.Node] = set()
    for node in reversed(known):
        if any(user not in known or (user in read and user.target in _FREE_VIEWS) for user in node.users):
            read.add(node)
    return [node for node in known if node in read]


def add_constant(
    module: fx.GraphModule, before: fx.Node, value: torch.Tensor, *, like: fx.Node, name: str, sources: frozenset[str]
) -> fx.Node:
    """A new attribute of the module that holds ``value``, read in front of ``before``; traced, it looks as ``like``.

    ``sources`` names the inputs that it was made of.
    """
    number = 0
    while hasattr(module, f"{name}_{number}"):
        number += 1
    module.register_buffer(f"{name}_{number}", value, persistent=False)
    with module.graph.inserting_before(before):
        constant = module.graph.get_attr(f"{name}_{number}")
    constant.meta = dict(like.meta)
    set_constant_sources(constant, sources)
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
