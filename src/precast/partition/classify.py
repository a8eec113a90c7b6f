"""Classify each node of a joint graph as forward, backward, or free.

    primals ──▶ forward ──▶ forward outputs
                  │
                  ▼
                free ──▶ backward ──▶ gradients
                            ▲
    tangents ───────────────┘

*Forward* nodes are those that the forward outputs need, and random draws and side effects of the forward.
*Backward* nodes depend on a tangent, or are draws and effects of the backward. *Free* nodes are read by the backward
only, but depend on no tangent: either half may compute them, unless the graph mutates values. Dead nodes are in none.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import fx
from torch.fx.node import Argument

from precast.errors import InputValueError
from precast.graph.nodes import is_backward
from precast.ops.facts import is_mutating, is_pure, is_random

NodeSet: TypeAlias = frozenset[fx.Node]


@dataclass(frozen=True)
class JointGraph:
    """A joint graph with its nodes classified; ``order`` numbers the nodes as traced."""

    module: fx.GraphModule
    order: dict[fx.Node, int]
    primals: tuple[fx.Node, ...]
    tangents: tuple[fx.Node, ...]
    forward_outputs: tuple[Argument, ...]
    gradients: tuple[Argument, ...]
    forward: NodeSet
    backward: NodeSet
    free: NodeSet

    def in_order(self, nodes: Iterable[fx.Node]) -> list[fx.Node]:
        """Return ``nodes`` in the order they were traced."""
        return sorted(nodes, key=self.order.__getitem__)

    def reads_of_backward(self) -> list[fx.Node]:
        """Return the values that the backward takes from outside: operands of its nodes, and gradients it passes on."""
        operands = {operand for node in self.backward for operand in node.all_input_nodes}
        passed_on = {gradient for gradient in self.gradients if isinstance(gradient, fx.Node)}
        return self.in_order((operands | passed_on) - self.backward)


def classify(joint_module: fx.GraphModule, *, num_fwd_outputs: int) -> JointGraph:
    """Sort the nodes of ``joint_module`` into forward, backward and free ones."""
    nodes = list(joint_module.graph.nodes)
    order = {node: index for index, node in enumerate(nodes)}
    outputs = _flat_outputs(joint_module, num_fwd_outputs)
    forward_outputs, gradients = outputs[:num_fwd_outputs], outputs[num_fwd_outputs:]
    placeholders = [node for node in nodes if node.op == "placeholder"]
    tangents = tuple(node for node in placeholders if node.name.startswith("tangents"))
    primals = tuple(node for node in placeholders if not node.name.startswith("tangents"))

    required = ancestors(_only_nodes(forward_outputs))
    last_forward = max((order[node] for node in required if node.op != "placeholder"), default=-1)
    pinned_forward, pinned_backward = _pinned(nodes, required, last_forward, descendants(tangents))
    forward = ancestors([*_only_nodes(forward_outputs), *pinned_forward])
    tied_to_backward = descendants([*tangents, *pinned_backward])
    _check_independence(forward, tied_to_backward)

    needed = ancestors([*_only_nodes(gradients), *pinned_backward])
    backward = (needed & tied_to_backward) | frozenset(tangents)
    free = needed - backward - forward - frozenset(primals)
    if any(is_mutating(node) for node in nodes if node.op == "call_function"):
        # Values may be mutated later, so they must be read where the program reads them.
        early = frozenset(node for node in free if not is_backward(node))
        forward, free = forward | early, free - early
    return JointGraph(
        module=joint_module,
        order=order,
        primals=primals,
        tangents=tangents,
        forward_outputs=forward_outputs,
        gradients=gradients,
        forward=forward | frozenset(primals),
        backward=backward,
        free=free,
    )


def is_symbolic(node: fx.Node) -> bool:
    """Whether a node's value is a number (a size, a stride) and not a tensor."""
    return isinstance(node.meta.get("val"), torch.SymInt | torch.SymFloat | torch.SymBool | int | float)


def is_tuple(node: fx.Node) -> bool:
    """Whether a node's value is a tuple, which a graph cannot return: its items are saved instead."""
    return isinstance(node.meta.get("val"), tuple | list)


def is_item_of_tuple(node: fx.Node) -> bool:
    """Whether a node selects an item of a tuple."""
    return node.op == "call_function" and len(node.all_input_nodes) == 1 and is_tuple(node.all_input_nodes[0])


def ancestors(roots: Iterable[fx.Node]) -> NodeSet:
    """Return ``roots`` and everything they are computed from."""
    found, pending = set[fx.Node](), list(roots)
    while pending:
        node = pending.pop()
        if node not in found:
            found.add(node)
            pending.extend(node.all_input_nodes)
    return frozenset(found)


def descendants(roots: Iterable[fx.Node]) -> NodeSet:
    """Return ``roots`` and everything computed from them, except the output node."""
    found, pending = set[fx.Node](), list(roots)
    while pending:
        node = pending.pop()
        if node not in found and node.op != "output":
            found.add(node)
            pending.extend(node.users)
    return frozenset(found)


def _flat_outputs(joint_module: fx.GraphModule, num_fwd_outputs: int) -> tuple[Argument, ...]:
    (returned,) = joint_module.graph.output_node().args
    outputs = tuple(returned) if isinstance(returned, list | tuple) else (returned,)
    if not 0 <= num_fwd_outputs <= len(outputs):
        raise InputValueError(
            f"num_fwd_outputs={num_fwd_outputs} does not fit a joint graph with {len(outputs)} outputs",
            why="a joint graph returns the forward outputs first, then one gradient or None per primal",
            fix=f"pass a number between 0 and {len(outputs)}",
        )
    return outputs


def _only_nodes(arguments: Iterable[Argument]) -> list[fx.Node]:
    return [argument for argument in arguments if isinstance(argument, fx.Node)]


def _pinned(
    nodes: list[fx.Node], required: NodeSet, last_forward: int, tied_to_tangents: NodeSet
) -> tuple[list[fx.Node], list[fx.Node]]:
    """Return the draws and effects of the forward, and those of the backward; none may be moved or dropped.

    Tracing may have recorded which half ran a node. If not: nodes are in the order of execution, so those before the
    last node that the forward outputs need were run by the forward.
    """
    is_recorded = any(is_backward(node) for node in nodes)
    forward, backward = [], []
    late = set(tied_to_tangents)
    for index, node in enumerate(nodes):
        if not late.isdisjoint(node.all_input_nodes):
            late.add(node)
        tag = node.meta.get("partitioner_tag")
        acts = node.op == "call_function" and (not is_pure(node) or is_random(node))
        if tag == "must_be_in_backward" or (acts and node in late):
            backward.append(node)
            late.add(node)
        elif tag == "must_be_in_forward":
            forward.append(node)
        elif acts and node not in required:
            if tag is None:
                in_backward = is_backward(node) if is_recorded else index > last_forward
            else:
                in_backward = tag == "is_backward"
            (backward if in_backward else forward).append(node)
            if in_backward:
                # The token that ends a chain of effects comes after the last of them, in whichever half that is.
                late.add(node)
    return forward, backward


def _check_independence(forward: NodeSet, tied_to_backward: NodeSet) -> None:
    for node in forward & tied_to_backward:
        raise InputValueError(
            f"the forward needs '{node.name}', which only the backward can compute",
            why="a forward output depends on a tangent, so num_fwd_outputs is wrong, or this is not a joint graph",
            fix="pass the number of outputs of the traced forward as num_fwd_outputs",
            at=node.stack_trace,
        )
