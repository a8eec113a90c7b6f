"""The minifier's strategies: a table of functions from a case to smaller cases.

Before: ``a = sin(x); b = cos(a); c = exp(b); return c``
After, for example:
    truncate_suffix    ``a = sin(x); b = cos(a); return b``
    prefix_to_inputs   ``c = exp(b); return c``, with b an input of its computed value
    chunks_to_inputs   ``a = sin(x); c = exp(b); return c``, the same for any run of nodes
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeGuard

import torch
from torch import fx
from torch.fx.node import Argument
from torch.utils import _pytree as pytree

Values = Mapping[str, object]
"""The values that the nodes of the original graph computed, by name; without nodes that were not reached."""


@dataclass(frozen=True)
class Case:
    """A graph and the inputs that it fails on."""

    graph_module: fx.GraphModule
    inputs: list[object]

    @property
    def operations(self) -> list[fx.Node]:
        """The nodes that are neither inputs nor the output, in order."""
        return [node for node in self.graph_module.graph.nodes if node.op not in ("placeholder", "output")]

    @property
    def outputs(self) -> list[fx.Node]:
        """The nodes that the graph returns, flat."""
        return [
            leaf for leaf in pytree.tree_leaves(self.graph_module.graph.output_node().args) if isinstance(leaf, fx.Node)
        ]

    @property
    def size(self) -> tuple[int, int, int]:
        """The size that shrinking reduces: operations first, then outputs, then inputs."""
        return len(self.operations), len(self.outputs), len(self.inputs)


Strategy = Callable[[Case, int, Values], Iterator[Case]]


def truncate_suffix(case: Case, chunk: int, values: Values) -> Iterator[Case]:
    """Return early: keep the first operations and return what the rest would have read."""
    operations = case.operations
    for end in range(chunk, len(operations), chunk):
        kept = set(operations[:end])
        kept |= {user for node in kept for user in node.users if _takes_from_tuple(user)}
        frontier = [
            node for node in operations if node in kept and _may_be_returned(node) and not kept.issuperset(node.users)
        ]
        yield rebuild(case, outputs=frontier, without=set(operations) - kept)


def prefix_to_inputs(case: Case, chunk: int, values: Values) -> Iterator[Case]:
    """Start late: replace the results of the first operations by inputs."""
    operations = case.operations
    for start in reversed(range(chunk, len(operations), chunk)):
        yield from _replace_with_inputs(case, operations[:start], values)


def chunks_to_inputs(case: Case, chunk: int, values: Values) -> Iterator[Case]:
    """Remove a run of operations in the middle: replace their results by inputs."""
    operations = case.operations
    for start in range(0, len(operations), chunk):
        yield from _replace_with_inputs(case, operations[start : start + chunk], values)


def drop_outputs(case: Case, chunk: int, values: Values) -> Iterator[Case]:
    """Return fewer values."""
    outputs = case.outputs
    if len(outputs) > 1:
        for start in range(0, len(outputs), chunk):
            if kept := outputs[:start] + outputs[start + chunk :]:
                yield rebuild(case, outputs=kept)


def drop_dead_code(case: Case, chunk: int, values: Values) -> Iterator[Case]:
    """Remove dead operations."""
    live, waiting = set[fx.Node](), case.outputs
    while waiting:
        node = waiting.pop()
        if node not in live:
            live.add(node)
            waiting += node.all_input_nodes
    if dead := set(case.operations) - live:
        yield rebuild(case, without=dead)


def drop_unused_inputs(case: Case, chunk: int, values: Values) -> Iterator[Case]:
    """Remove unused inputs."""
    placeholders = case.graph_module.graph.find_nodes(op="placeholder")
    if unused := {node for node in placeholders if not node.users}:
        yield rebuild(case, without=unused)


def concretize_numbers(case: Case, chunk: int, values: Values) -> Iterator[Case]:
    """Replace number inputs by constants in the graph."""
    placeholders = case.graph_module.graph.find_nodes(op="placeholder")
    numbers = {node: value for node, value in zip(placeholders, case.inputs, strict=True) if _is_number(value)}
    if numbers:
        yield rebuild(case, constants=numbers)


STRATEGIES: tuple[Strategy, ...] = (
    truncate_suffix,
    prefix_to_inputs,
    drop_outputs,
    drop_dead_code,
    chunks_to_inputs,
    drop_unused_inputs,
    concretize_numbers,
)


def rebuild(
    case: Case,
    *,
    outputs: Sequence[fx.Node] | None = None,
    without: Iterable[fx.Node] = (),
    new_inputs: Mapping[fx.Node, object] | None = None,
    constants: Mapping[fx.Node, int | float] | None = None,
) -> Case:
    """Return a new case with other outputs, some nodes removed, some turned into inputs, some inputs into constants."""
    left_out, new_inputs, constants = set(without), new_inputs or {}, constants or {}
    graph, mapping = fx.Graph(), dict[fx.Node, Argument](constants)
    inputs: list[object] = []
    placeholders = case.graph_module.graph.find_nodes(op="placeholder")
    for node, value in [*zip(placeholders, case.inputs, strict=True), *new_inputs.items()]:
        if node not in left_out and node not in constants:
            # The name must not contain an op's name: a checker may search the graph's text for one.
            placeholder = mapping[node] = graph.placeholder(f"input_{len(inputs)}")
            placeholder.meta = dict(node.meta)
            inputs.append(value)
    for node in case.operations:
        if node not in left_out and node not in mapping:
            mapping[node] = graph.node_copy(node, mapping.__getitem__)
    graph.output(tuple(mapping[node] for node in (case.outputs if outputs is None else outputs)))
    return Case(fx.GraphModule(case.graph_module, graph), inputs)


def _replace_with_inputs(case: Case, operations: Sequence[fx.Node], values: Values) -> Iterator[Case]:
    """Yield the case without ``operations``, except those that are needed and whose value cannot be an input."""
    removed = set(operations)
    new_inputs: dict[fx.Node, object] = {}
    for node in reversed(operations):
        if removed.issuperset(node.users):
            continue
        value = values.get(node.name)
        if isinstance(value, torch.Tensor) or _is_number(value):
            new_inputs[node] = value
        else:
            removed.discard(node)
    if removed:
        yield rebuild(case, without=removed - set(new_inputs), new_inputs=dict(reversed(new_inputs.items())))


def _is_number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, int | float)


def _takes_from_tuple(node: fx.Node) -> bool:
    return getattr(node.target, "__name__", "") == "getitem"


def _may_be_returned(node: fx.Node) -> bool:
    return node.op != "get_attr" and not any(_takes_from_tuple(user) for user in node.users)
