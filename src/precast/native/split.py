"""Splits a graph into segments that become native code and segments that torch runs node by node.

Before::

    a = x.exp(); b = torch.view_as_complex(a); c = torch.view_as_real(b * b); d = c + x

After::

    native segment: a        torch segment: b, b * b, c        native segment: d

Native code handles dense real tensors on a target's devices. Operators that take or return anything else (complex or
sparse tensors, data-dependent sizes, workspaces, subgraphs, effects) are eager fallbacks, in as few torch segments as
dependencies allow.

The native part of a backward is split where that frees memory early.

Before::

    native segment: a … z            every saved activation is alive until it ends

After::

        native segment: a … m            saved activations that only these read are freed here
    native segment: n … z
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import torch
from torch import fx
from torch._ops import HigherOrderOperator, OpOverload
from torch._prims.rng_prims import run_with_rng_state
from torch.utils import _pytree as pytree

from precast.artifact.dtypes import DTYPES
from precast.events import stage
from precast.graph.nodes import (
    has_value,
    placeholders_of,
    results_of,
    subgraph_of,
    tensor_of,
    updating_result_of,
    value_of,
)
from precast.graph.tensor_spec import dtype_name
from precast.native.call import SizeReader
from precast.native.rules.lower import MAX_RANK
from precast.native.rules.registry import rule_for
from precast.native.rules.sizes import symbols_in
from precast.native.rules.sizes_from_data import CHECKED
from precast.native.sizes import is_known, size_readers
from precast.native.sizes_from_data import ASSERT_SCALAR, compares_sizes, makes_sizes
from precast.ops.cost import bytes_of
from precast.ops.facts import Fact, facts_of, is_random
from precast.ops.own_operators import random_seed

MIN_FREED = 16 * 2**20
"""A split that frees less than this is not worth another call."""
MAX_PARTS = 16


def saved_inputs(graph: fx.Graph) -> set[fx.Node]:
    """The residuals of a backward: no caller holds a reference to them. Empty for other graphs."""
    inputs = placeholders_of(graph)
    if not any(node.name.startswith("tangents_") for node in inputs):
        return set()
    return {node for node in inputs if not node.name.startswith(("primals_", "tangents_"))}


def parts(nodes: Sequence[fx.Node], freed: Collection[fx.Node]) -> list[Sequence[fx.Node]]:
    """Split ``nodes`` into runs such that each but the last is the last reader of a good share of ``freed``.

    Runs end where few computed bytes are live, and much less than is freed.
    """
    deaths = _deaths(nodes, freed)
    share = max(MIN_FREED, sum(deaths) // MAX_PARTS)
    crossing = _crossing_bytes(nodes)
    runs: list[Sequence[fx.Node]] = []
    start, gone, best = 0, 0, None
    for position in range(len(nodes) - 1):
        gone += deaths[position]
        if gone >= share and crossing[position] < (gone / 2 if best is None else crossing[best]):
            best = position
        if best is not None and gone >= 2 * share:
            runs.append(nodes[start : best + 1])
            start, gone, best = best + 1, sum(deaths[best + 1 : position + 1]), None
    return [*runs, nodes[start:]]


def _deaths(nodes: Sequence[fx.Node], freed: Collection[fx.Node]) -> list[int]:
    """For each node, the bytes of ``freed`` that it is the last to read."""
    last = {source: i for i, node in enumerate(nodes) for source in node.all_input_nodes if source in freed}
    deaths = [0] * len(nodes)
    for source, i in last.items():
        deaths[i] += bytes_of(value_of(source))
    return deaths


def _crossing_bytes(nodes: Sequence[fx.Node]) -> list[float]:
    """After each node, the live bytes computed so far; infinite where a split would part a tuple from its items."""
    last = _last_readers(nodes)
    changes = [0.0] * (len(nodes) + 1)
    for position, node in enumerate(nodes):
        value = value_of(node)
        alive = bytes_of(value) if isinstance(value, torch.Tensor) else 1e18
        changes[position] += alive
        changes[last.get(node, position)] -= alive
    return list(accumulate(changes))


def _last_readers(nodes: Sequence[fx.Node]) -> Mapping[fx.Node, int]:
    inside = set(nodes)
    return {source: i for i, node in enumerate(nodes) for source in node.all_input_nodes if source in inside}


_PLAIN_ARGUMENTS = (torch.dtype, torch.device, torch.layout, torch.memory_format, str, bool, int, float, type(None))

_LEFT_TO_TORCH = frozenset({Fact.EFFECTFUL, Fact.DATA_DEPENDENT, Fact.MUTATING, Fact.WORKSPACE, Fact.COMMUNICATING})


@dataclass(frozen=True)
class Segment:
    """Nodes that run together, in order; `inputs` are computed before, `outputs` are read afterwards.

    `updates` are outputs that may be written into the memory of an input, each with that input.
    """

    is_native: bool
    nodes: tuple[fx.Node, ...]
    inputs: tuple[fx.Node, ...]
    outputs: tuple[fx.Node, ...]
    updates: tuple[tuple[fx.Node, fx.Node], ...] = ()


@dataclass(frozen=True)
class ViewChain:
    """A result that is a view: `root` is kept, and the views are taken after the last segment."""

    root: fx.Node
    views: tuple[fx.Node, ...]


Result = fx.Node | ViewChain | object


@dataclass(frozen=True)
class SplitGraph:
    """Segments in a topological order, and the results of the graph."""

    module: fx.GraphModule
    segments: tuple[Segment, ...]
    results: tuple[Result, ...]


@stage
def split_graph(module: fx.GraphModule, device: str) -> SplitGraph:
    """Split a functional graph into native and torch segments; native nodes stay on devices of one kind."""
    updates = _updates(module.graph, device)
    results = tuple(each if each in updates else _result(each) for each in results_of(module.graph))
    readers = computed_sizes(module.graph)
    levels = _levels(module.graph, readers, device)
    members: dict[int, list[fx.Node]] = {}
    needed = _needed_nodes(module.graph, results, readers)
    for node, level in levels.items():
        if node in needed:
            members.setdefault(level, []).append(node)
    returned = {node for each in results for node in _nodes_of_result(each)}
    freed = saved_inputs(module.graph) - returned
    segments = tuple(
        _segment(part, returned, needed, is_native=level % 2 == 0)
        for level in sorted(members)
        for part in (parts(members[level], freed) if level % 2 == 0 else [members[level]])
    )
    return SplitGraph(module, tuple(_with_updates(segments, updates)), results)


def _updates(graph: fx.Graph, device: str) -> dict[object, fx.Node]:
    """New values of inputs, each with the input into whose memory it may be written."""
    marked = [(node, number) for node in placeholders_of(graph) if (number := updating_result_of(node)) is not None]
    results = results_of(graph) if marked else ()
    pairs = [(results[number], node) for node, number in reversed(marked)]
    return {value: node for value, node in pairs if isinstance(value, fx.Node) and may_be_native(value, device)}


def _with_updates(segments: Sequence[Segment], updates: Mapping[object, fx.Node]) -> Iterator[Segment]:
    """The segments with those updates after which nothing reads the old value or may fail."""
    order = {node: number for number, node in enumerate(next(iter(updates.values())).graph.nodes)} if updates else {}
    for number, segment in enumerate(segments):
        later = segments[number + 1 :]
        read_later = {node for each in later for node in each.inputs}
        first_later = min((order[node] for each in later for node in each.nodes), default=len(order)) if updates else 0
        taken = tuple(
            (value, updates[value])
            for value in segment.outputs
            if segment.is_native
            and value in updates
            and updates[value] not in read_later
            and order[value] < first_later
        )
        inputs = dict.fromkeys((*segment.inputs, *(node for _, node in taken)))
        yield replace(segment, inputs=tuple(inputs), updates=taken) if taken else segment


def is_size(node: fx.Node) -> bool:
    """Whether a node is an integer computed from the sizes of inputs alone: it need not run."""
    value = value_of(node) if has_value(node) else None
    if not isinstance(value, torch.SymInt | int) or isinstance(value, bool):
        return False
    if isinstance(value, torch.SymInt) and not is_known(value):
        return False
    return node.op == "placeholder" or (node.op == "call_function" and not makes_sizes(node))


def computed_sizes(graph: fx.Graph) -> dict[str, SizeReader[fx.Node]]:
    """For each data-dependent size, the first node from which it can be read."""
    given = size_readers(placeholders_of(graph))
    found: dict[str, SizeReader[fx.Node]] = {}
    for node in graph.nodes:
        if node.op != "call_function" or not has_value(node) or is_size(node):
            continue
        new = {name for name in symbols_in(value_of(node)) if name not in given and name not in found}
        if new:
            found.update({name: reader for name, reader in size_readers([node]).items() if name in new})
    return found


def _sources(node: fx.Node, readers: Mapping[str, SizeReader[fx.Node]]) -> list[fx.Node]:
    """A node's dependencies: its arguments, and the sources of the data-dependent sizes in its value or theirs."""
    if not readers:
        return node.all_input_nodes
    values = [value_of(each) for each in (node, *node.all_input_nodes) if has_value(each)]
    names = dict.fromkeys(name for value in values for name in symbols_in(value) if name in readers)
    return [*node.all_input_nodes, *(readers[name].source for name in names if readers[name].source is not node)]


def _levels(graph: fx.Graph, readers: Mapping[str, SizeReader[fx.Node]], device: str) -> dict[fx.Node, int]:
    """Assign levels: even ones are native, odd ones are torch's; a node's level is at least that of its arguments.

    Random draws and effects keep their order. A collective starts after everything before it in the graph has run, and
    overlaps with what follows until its wait.
    """
    levels: dict[fx.Node, int] = {}
    last_ordered, last_exchange = -1, -1
    for node in graph.nodes:
        if node.op != "call_function" or is_size(node):
            continue
        # An unused draw still advances torch's generator, and native code drops unused nodes.
        parity = 0 if may_be_native(node, device) and (node.users or not is_random(node)) else 1
        inputs = [levels[each] for each in _sources(node, readers) if each in levels]
        if node.target is operator.getitem and inputs:
            levels[node] = inputs[0]
            continue
        is_ordered = bool(facts_of(node) & {Fact.RANDOM, Fact.EFFECTFUL})
        is_exchange = Fact.COMMUNICATING in facts_of(node)
        before = levels.values() if is_exchange else ()
        lowest = max([-parity, last_exchange, *inputs, *([last_ordered] if is_ordered else []), *before])
        levels[node] = lowest if lowest % 2 == parity else lowest + 1
        if is_ordered:
            last_ordered = levels[node]
        if is_exchange:
            last_exchange = levels[node]
    return levels


def may_be_native(node: fx.Node, device: str, *, finds_sizes: bool = False) -> bool:
    """Whether lowering can take the node: by a rule, or as a step that calls back into torch.

    With `finds_sizes`, also operators that compute or check data-dependent sizes: for callers that lower everything
    after such a node together with it.
    """
    if node.target is operator.getitem:
        source = node.args[0]
        return isinstance(source, fx.Node) and may_be_native(source, device, finds_sizes=finds_sizes)
    if node.target is run_with_rng_state:
        return is_drawn_natively(node)
    if isinstance(node.target, HigherOrderOperator):
        return _runs_native_parts(node, device, finds_sizes=finds_sizes)
    is_check = node.target is torch.ops.aten._assert_async.msg
    if is_check or (finds_sizes and node.target is torch.ops.aten._linalg_check_errors.default):
        return _may_be_argument(node.args[0], device)
    if finds_sizes and has_value(node) and isinstance(value_of(node), torch.SymBool):
        return True
    if not isinstance(node.target, OpOverload) or not has_value(node) or node.target is random_seed:
        return False
    if finds_sizes and _finds_sizes(node):
        return True
    if facts_of(node) & _LEFT_TO_TORCH or makes_sizes(node) or compares_sizes(node, checked=finds_sizes):
        return False
    arguments = pytree.tree_leaves((node.args, node.kwargs))
    found = [each for each in arguments if finds_sizes and isinstance(each, fx.Node) and _is_found_number(each)]
    return is_representable(value_of(node), [each for each in arguments if each not in found], device)


def _is_found_number(node: fx.Node) -> bool:
    return has_value(node) and isinstance(value_of(node), torch.SymInt) and may_be_native(node, "", finds_sizes=True)


def _finds_sizes(node: fx.Node) -> bool:
    """Whether a node has a rule by which it computes a data-dependent size, or checks sizes."""
    if node.target is ASSERT_SCALAR:
        condition = node.args[0]
        # Tracing may have replaced this symbol by another; what it proved of that one must still be checked of this.
        value = value_of(condition) if isinstance(condition, fx.Node) else None
        return value is None or (isinstance(value, torch.SymBool) and type(value.node.expr) in CHECKED)
    value = value_of(node)
    is_whole = isinstance(value, torch.SymInt) or not isinstance(value, torch.SymFloat | torch.SymBool)
    return is_whole and makes_sizes(node) and rule_for(node.target) is not None


def _runs_native_parts(node: fx.Node, device: str, *, finds_sizes: bool) -> bool:
    """Whether a control-flow operator, and everything in its subgraphs, can be native."""
    leaves = pytree.tree_leaves((node.args, node.kwargs))
    subgraphs = {each: subgraph_of(each) for each in leaves if isinstance(each, fx.Node)}
    operands = [each for each in leaves if subgraphs.get(each) is None]
    is_held = has_value(node) and not makes_sizes(node) and is_representable(value_of(node), operands, device)
    return (
        is_held
        and rule_for(node.target) is not None
        and all(_is_native(each, device, finds_sizes) for each in subgraphs.values() if each is not None)
    )


def _is_native(module: fx.GraphModule, device: str, finds_sizes: bool) -> bool:
    return all(
        (may_be_native(node, device, finds_sizes=finds_sizes) and not is_random(node)) or is_size(node)
        for node in module.graph.nodes
        if node.op == "call_function"
    ) and all(isinstance(each, fx.Node | None) for each in pytree.tree_leaves(module.graph.output_node().args))


def is_representable(value: object, arguments: object, device: str) -> bool:
    """Whether native code can represent a call's result and all of its arguments."""
    values = value if isinstance(value, tuple | list) else (value,)
    is_expressible = any(isinstance(each, torch.Tensor) for each in values)
    are_buffers = all(_may_be_buffer(each, device) for each in values)
    return (
        is_expressible and are_buffers and all(_may_be_argument(each, device) for each in pytree.tree_leaves(arguments))
    )


def is_drawn_natively(node: fx.Node) -> bool:
    """Whether a random operator draws from one of our streams, and not from torch's generator."""
    state = node.args[0]
    return isinstance(state, fx.Node) and has_value(state) and tensor_of(state).dtype is torch.int64


def _may_be_argument(argument: object, device: str) -> bool:
    if not isinstance(argument, fx.Node):
        return isinstance(argument, _PLAIN_ARGUMENTS)
    if not has_value(argument):
        return False
    value = value_of(argument)
    if isinstance(value, torch.SymInt):
        return is_size(argument) and is_known(value)
    return (
        isinstance(value, int | float | None) or _may_be_buffer(value, device) or _is_number_on_host(argument, device)
    )


def _is_number_on_host(node: fx.Node, device: str) -> bool:
    """Whether it is a CPU scalar tensor whose value is known: operators on any device accept one."""
    value = value_of(node)
    is_number = isinstance(value, torch.Tensor) and value.ndim == 0 and _may_be_buffer(value, "cpu")
    return device != "cpu" and node.op == "placeholder" and is_number


def _may_be_buffer(value: object, device: str) -> bool:
    """Whether native code can represent the value; None is a result that was not requested."""
    if value is None:
        return True
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided or value.device.type != device:
        return False
    if dtype_name(value.dtype) not in DTYPES or value.is_complex() or value.ndim > MAX_RANK or value.is_neg():
        return False
    return all(isinstance(size, int) or is_known(size) for size in (*value.shape, *value.stride()))


def _segment(nodes: Sequence[fx.Node], returned: set[fx.Node], needed: set[fx.Node], *, is_native: bool) -> Segment:
    inside = set(nodes)
    used = dict.fromkeys(each for node in nodes for each in node.all_input_nodes if each not in inside)
    inputs = tuple(each for each in used if not is_size(each) and subgraph_of(each) is None)
    readers = needed - inside
    outputs = tuple(node for node in nodes if node in returned or readers.intersection(node.users))
    return Segment(is_native, tuple(nodes), inputs, outputs)


def _needed_nodes(
    graph: fx.Graph, results: Sequence[Result], readers: Mapping[str, SizeReader[fx.Node]]
) -> set[fx.Node]:
    """The nodes that results, effects and draws depend on, except for sizes computed from those of inputs."""
    needed: set[fx.Node] = set()
    waiting = [node for each in results for node in _nodes_of_result(each)]
    waiting += [each for node in list(waiting) if is_size(node) for each in _sources(node, readers)]
    acting = {Fact.EFFECTFUL, Fact.RANDOM}
    waiting += [node for node in graph.nodes if node.op == "call_function" and not acting.isdisjoint(facts_of(node))]
    while waiting:
        node = waiting.pop()
        if node not in needed and not is_size(node):
            needed.add(node)
            waiting += _sources(node, readers)
    return needed


def _nodes_of_result(result: Result) -> tuple[fx.Node, ...]:
    if isinstance(result, ViewChain):
        return (result.root,)
    return (result,) if isinstance(result, fx.Node) else ()


_ALL_ELEMENTS = {
    getattr(getattr(torch.ops.aten, name), overload)
    for name, overload in (
        ("alias", "default"), ("t", "default"), ("transpose", "int"), ("permute", "default"), ("view", "default"),
        ("_unsafe_view", "default"), ("unsqueeze", "default"), ("squeeze", "default"), ("squeeze", "dim"),
        ("squeeze", "dims"), ("expand", "default"),
    )
}  # fmt: skip
_SOME_ELEMENTS = {
    torch.ops.aten.select.int, torch.ops.aten.slice.Tensor, torch.ops.aten.diagonal.default,
    torch.ops.aten.as_strided.default, torch.ops.aten.unbind.int, torch.ops.aten.split.Tensor,
    torch.ops.aten.split_with_sizes.default,
}  # fmt: skip


def _result(result: object) -> Result:
    """A returned view of an input, or of the whole of a computed tensor, shares its memory as it does in eager.

    So does an overlapping view: no fresh tensor could have its strides.
    """
    if not isinstance(result, fx.Node):
        return result
    node, views = result, list[fx.Node]()
    while _is_view(node):
        if not all(is_size(each) for each in node.all_input_nodes if each is not node.args[0]):
            break  # Its storage offset is computed.
        views.insert(0, node)
        source = node.args[0]
        assert isinstance(source, fx.Node), f"{node} is a view of nothing"
        node = source
    takes_part = any(view.target in _SOME_ELEMENTS for view in views)
    is_input = node in placeholders_of(node.graph) or node.op == "get_attr"
    if not views or (takes_part and not is_input and not _shows_again(result)):
        return result
    return ViewChain(node, tuple(views))


def _is_view(node: object) -> bool:
    """Whether it is a view, or one of the several views that an operator returns."""
    if not isinstance(node, fx.Node) or node.op != "call_function":
        return False
    is_one_of_several = node.target is operator.getitem and _is_view(node.args[0])
    return is_one_of_several or node.target in _ALL_ELEMENTS or node.target in _SOME_ELEMENTS


def _shows_again(node: fx.Node) -> bool:
    value = tensor_of(node)
    return any(isinstance(stride, int) and stride == 0 for stride in value.stride())
