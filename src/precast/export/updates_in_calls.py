"""Writes into state and inputs go back into the calls of submodules that made them, so that those can be exchanged.

Before: ``add = count + 1`` inside the submodule ``child``, whose caller reads ``add``; at the end ``copy_(count, add)``
After:  ``add = count + 1; copy_(count, add)`` inside of ``child``; who comes later reads ``count``
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import torch
from torch import fx

from precast.export.tracepoints import ModuleCallEntry
from precast.export.unlift import NORMALIZING_AND_UPDATING, keep_statistics_for_backward
from precast.graph.nodes import tensor_of
from precast.graph.tensor_spec import TensorSpec
from precast.ops.facts import is_view
from precast.ops.operators_in_files import checked, is_checked

Stack = Sequence[tuple[str, tuple[str, str]]]
"""The calls around a node, outermost first: key → (path, class)."""
_copy, _clone = torch.ops.aten.copy_.default, torch.ops.aten.clone.default
_OUTSIDE = "outside"
_NORMALIZING = NORMALIZING_AND_UPDATING | {checked(each) for each in NORMALIZING_AND_UPDATING if is_checked(each)}


@dataclass(frozen=True)
class _Call:
    """One call of a submodule whose signature was kept: its path, what it consists of, and its own stack.

    ``roles``: what makes the same node of another call of the submodule.
    """

    path: str
    stack: Stack
    nodes: tuple[fx.Node, ...]
    roles: Mapping[fx.Node, str]


def place_updates(
    graph: fx.Graph, stacks: dict[fx.Node, Stack], entries: Sequence[ModuleCallEntry]
) -> dict[str, fx.Node]:
    """Change the graph so; returns, by the names of the values that were written, what has each of them now.

    A write stays at the end where the old value is read after the call, or where not all writes of that state are
    found: those of earlier calls are what is computed there as the last one is in its call.
    """
    calls = _calls(stacks, {entry.fqn.partition("@")[0] for entry in entries if entry.fqn and entry.signature})
    order = {node: number for number, node in enumerate(graph.nodes)}
    replaced: dict[str, fx.Node] = {}
    for write in graph.find_nodes(op="call_function", target=_copy) if calls else ():
        home, last = write.args
        if not (isinstance(last, fx.Node) and last in calls and _may_move(write)):
            continue
        values = sorted(_counterparts(last, calls), key=order.__getitem__)
        if _may_be_written_there(home, values, calls, order, write):
            for value in values:
                placed = _write_after(graph, home, value, calls[value])
                stacks[placed], order[placed] = calls[value].stack, order[calls[value].nodes[-1]]
            for user in [user for user in home.users if user.target in _NORMALIZING]:
                for clone in keep_statistics_for_backward(graph, user):
                    stacks[clone], order[clone] = stacks[user], order[user]
            replaced |= {value.name: home for value in values}
            write.replace_all_uses_with(home)
            graph.erase_node(write)
            del stacks[write]
    return replaced


def _calls(stacks: Mapping[fx.Node, Stack], kept: set[str]) -> dict[fx.Node, _Call]:
    """The innermost call of a kept submodule around each node that is in any."""
    around: dict[fx.Node, list[str]] = {}
    nodes: dict[str, list[fx.Node]] = {}
    own: dict[str, Stack] = {}
    for node, stack in stacks.items():
        for depth, (key, (path, _)) in enumerate(stack, 1):
            if path in kept:
                around.setdefault(node, []).append(key)
                nodes.setdefault(key, []).append(node)
                own.setdefault(key, list(stack)[:depth])
    calls = {key: _Call(own[key][-1][1][0], own[key], tuple(nodes[key]), _roles(nodes[key])) for key in nodes}
    return {node: calls[keys[-1]] for node, keys in around.items()}


def _roles(nodes: Sequence[fx.Node]) -> dict[fx.Node, str]:
    """How each node is computed from what comes from outside, and which one of those computed so it is.

    Copies of state count as the state itself: only the first of several calls reads that.
    """
    roles: dict[fx.Node, str] = {}
    forms: dict[Any, str] = {}
    seen: Counter[str] = Counter()
    for node in nodes:
        form = f"{node.target} {fx.map_arg((node.args, node.kwargs), lambda each: forms.get(each, _OUTSIDE))}"
        # Short, as it is part of the forms that follow.
        roles[node] = sha256(f"{form} {seen[form]}".encode()).hexdigest()
        seen[form] += 1
        is_copy = node.target is _clone and forms.get(node.args[0], _OUTSIDE) == _OUTSIDE
        forms[node] = _OUTSIDE if is_copy else roles[node]
    return roles


def _counterparts(value: fx.Node, calls: Mapping[fx.Node, _Call]) -> list[fx.Node]:
    """The value and what has its role in other calls of the submodule."""
    own = calls[value]
    return [node for node, call in calls.items() if call.path == own.path and call.roles[node] == own.roles[value]]


def _may_move(write: fx.Node) -> bool:
    """Whether a write is into a buffer or an input: parameters are written apart from their history."""
    home = write.args[0]
    is_guarded = write.prev.target is torch._C._set_grad_enabled
    return isinstance(home, fx.Node) and home.op in ("get_attr", "placeholder") and not is_guarded


def _may_be_written_there(
    home: fx.Node,
    values: Sequence[fx.Node],
    calls: Mapping[fx.Node, _Call],
    order: Mapping[fx.Node, int],
    write: fx.Node,
) -> bool:
    """Whether no node can tell if each value is written at the end of its call, one after the other."""
    ends = [order[calls[value].nodes[-1]] for value in values]
    insides = [set(calls[value].nodes) for value in values]
    return (
        ends == sorted(set(ends))
        and all(TensorSpec.of(tensor_of(value)) == TensorSpec.of(tensor_of(home)) for value in values)
        and all(
            order[user] <= end
            for old, end in zip([home, *values[:-1]], ends, strict=True)
            for user in _readers(old, write)
        )
        and all(
            order[user] > end
            for value, end, inside in zip(values, ends, insides, strict=True)
            for user in value.users
            if user not in inside
        )
    )


def _readers(value: fx.Node, write: fx.Node) -> Iterator[fx.Node]:
    """What reads a value or a view of it, but for the write at the end."""
    for user in value.users:
        if user is not write:
            yield user
            if is_view(user):
                yield from _readers(user, write)


def _write_after(graph: fx.Graph, home: fx.Node, value: fx.Node, call: _Call) -> fx.Node:
    """Write the value at the end of its call; who reads it outside of the call reads what was written."""
    with graph.inserting_after(call.nodes[-1]):
        write = graph.call_function(_copy, (home, value))
    write.meta = dict(home.meta)
    inside = {write, *call.nodes}
    value.replace_all_uses_with(home, delete_user_cb=lambda user: user not in inside)
    return write
