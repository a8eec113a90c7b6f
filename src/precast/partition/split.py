"""Split a joint graph into forward and backward, given what is saved.

Before::

    joint(primals_1, tangents_1):
        sin = sin(primals_1); exp = exp(sin); mul = mul(tangents_1, exp); ...
        return [exp, mul_1]

After, saving ``sin``::

    forward(primals_1):                        backward(sin, tangents_1):
        sin = sin(primals_1); exp = exp(sin)       exp = exp(sin); mul = mul(tangents_1, exp); ...
        return (exp, sin)                          return (mul_1,)

What the backward needs and is not given, it recomputes; a random op replays its draw.
Nodes keep names and metadata.

Sizes that the backward uses and cannot derive from its inputs are saved as well:

Before: the forward saves only ``f32[s0*s1]``, from which ``s0`` and ``s1`` cannot be derived.
After:  it saves these two numbers, too.

Sizes that the backward can derive are not saved:

Before: the forward saves ``x``, the size ``s0`` of ``x``, ``s1``, and ``s0 + s1``.
After:  it saves ``x`` and ``s1``.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

import sympy
import torch
from torch import fx
from torch.fx.node import Argument

from precast.ops.facts import is_random
from precast.partition.classify import JointGraph, is_symbolic
from precast.partition.policy import operands_to_recompute, recipe_of
from precast.partition.replay import record, replay, state_placeholder

Number = torch.SymInt | torch.SymFloat | torch.SymBool
_SIZES_OF_TENSORS = (torch.ops.aten.sym_size.int, torch.ops.aten.sym_numel.default)


def hidden_sizes(joint: JointGraph, given: Collection[fx.Node], computed: Iterable[fx.Node]) -> list[fx.Node]:
    """The symbolic numbers of the forward that a backward needs besides ``given``, to know all sizes."""
    read = (*given, *joint.tangents)
    known = {symbol for node in read for symbol in _shown(node)}
    hidden = {symbol for node in (*read, *computed) for symbol in _symbols(node)} - known
    if not hidden:
        return []
    found: dict[str, fx.Node] = {}
    # Sizes of primals are candidates even if the forward does not use them as numbers.
    primals = set(joint.primals)
    for node in (each for each in joint.order if each in joint.forward or primals.issuperset(each.all_input_nodes)):
        symbols = _symbols(node) if is_symbolic(node) else set()
        if len(symbols) == 1 and symbols <= hidden and str(node.meta["val"]) in symbols:
            found.setdefault(symbols.pop(), node)
    return [node for node in found.values() if node not in given]


def _shown(node: fx.Node) -> set[str]:
    """Symbols that can be derived from a value: a size is linear in one of them and has no other."""
    expressions = (number.node.expr for number in _numbers(node))
    alone = ((each, *each.free_symbols) for each in expressions if len(each.free_symbols) == 1)
    return {symbol.name for each, symbol in alone if each.is_polynomial(symbol) and sympy.degree(each, symbol) == 1}


def _symbols(node: fx.Node) -> set[str]:
    return {name for number in _numbers(node) for name in _names(number)}


def _names(number: Number) -> set[str]:
    return {symbol.name for symbol in number.node.expr.free_symbols}


def _numbers(node: fx.Node) -> list[Number]:
    value = node.meta.get("val")
    values = value if isinstance(value, tuple | list) else (value,)
    sizes = [size for each in values for size in (each.shape if isinstance(each, torch.Tensor) else (each,))]
    return [size for size in sizes if isinstance(size, Number)]


def with_fewest_sizes(joint: JointGraph, saved: Sequence[fx.Node]) -> list[fx.Node]:
    """The values to save, without sizes that can be derived from others; or with their sources, if these are fewer."""
    tensors, sizes, shown = _tensors_and_sizes(joint, saved)
    kept = set(sizes)
    for size in reversed(sizes):
        if _sources(size, shown, kept - {size}) <= kept - {size}:
            kept.discard(size)
    sources = {source for size in sizes for source in _sources(size, shown, ())}
    return [*tensors, *joint.in_order(kept if len(kept) <= len(sources) else sources)]


def with_sizes_of_forward(joint: JointGraph, saved: Sequence[fx.Node]) -> list[fx.Node]:
    """The values to save, with sizes that the forward computes instead of those that only the backward does."""
    tensors, sizes, shown = _tensors_and_sizes(joint, saved)
    return [*tensors, *joint.in_order({each for size in sizes for each in _sources(size, shown, joint.forward)})]


def _tensors_and_sizes(
    joint: JointGraph, saved: Sequence[fx.Node]
) -> tuple[list[fx.Node], list[fx.Node], set[fx.Node]]:
    """The saved tensors, the saved sizes, and the tensors whose sizes the backward sees."""
    tensors = [node for node in saved if not is_symbolic(node)]
    return tensors, [node for node in saved if is_symbolic(node)], {*tensors, *joint.tangents}


def _sources(size: fx.Node, shown: Collection[fx.Node], known: Collection[fx.Node]) -> set[fx.Node]:
    """The numbers that a size is derived from: those known, and those that are not sizes of tensors in ``shown``."""
    found, pending = set[fx.Node](), [size]
    while pending:
        node = pending.pop()
        operands, is_of_tensor = node.all_input_nodes, node.target in _SIZES_OF_TENSORS
        if node in known or not operands or not (is_of_tensor or all(map(is_symbolic, operands))):
            found.add(node)
        elif not is_of_tensor:
            pending.extend(operands)
        elif operands[0] not in shown:
            found.add(node)
    return found


def verify_halves(joint: JointGraph, forward: fx.GraphModule, backward: fx.GraphModule) -> None:
    """Assert that the forward saves, by name and order, exactly what the backward takes."""
    saved = _returned(forward)[len(joint.forward_outputs) :]
    sizes = [node.name for node in saved if isinstance(node, fx.Node) and is_symbolic(node)]
    tensors = [node.name for node in saved if isinstance(node, fx.Node) and not is_symbolic(node)]
    tangents = [node.name for node in joint.tangents]
    _agree("the forward takes the primals", _placeholders(forward), [node.name for node in joint.primals])
    _agree("the forward saves tensors, then sizes", _named(saved), [*tensors, *sizes])
    _agree("the backward takes sizes, tensors, tangents", _placeholders(backward), [*sizes, *tensors, *tangents])
    _agree("the backward returns the gradients", _named(_returned(backward)), _named(joint.gradients))


def _agree(rule: str, found: list[str], expected: list[str]) -> None:
    assert found == expected, f"{rule}: expected {expected}, found {found}"


def _placeholders(half: fx.GraphModule) -> list[str]:
    return [node.name for node in half.graph.find_nodes(op="placeholder")]


def _returned(half: fx.GraphModule) -> tuple[object, ...]:
    (returned,) = half.graph.output_node().args
    assert isinstance(returned, tuple)
    return returned


def _named(values: tuple[object, ...]) -> list[str]:
    return [str(value) for value in values]


def split(
    joint: JointGraph, saved: Collection[fx.Node], *, recompute_late: bool = True
) -> tuple[fx.GraphModule, fx.GraphModule]:
    """Return the forward that also returns ``saved``, and the backward that starts from it.

    With ``recompute_late``, the backward recomputes a value right before its first use, so that it lives no longer than
    needed; otherwise in the order of tracing.
    """
    saved = [*saved, *hidden_sizes(joint, saved, nodes_of_backward(joint, saved))]
    computed = nodes_of_backward(joint, saved)
    replayed = replayed_nodes(joint, computed)
    handed_over = _HandedOver(
        sizes=tuple(node for node in saved if is_symbolic(node)),
        tensors=tuple(node for node in saved if not is_symbolic(node)),
        replayed=tuple(joint.in_order(replayed)),
    )
    schedule = _recomputed_right_before_use if recompute_late else _as_traced
    forward = fx.GraphModule(joint.module, _forward_graph(joint, handed_over), class_name="Forward")
    backward_graph = _backward_graph(joint, handed_over, schedule(joint, computed))
    backward = fx.GraphModule(joint.module, backward_graph, class_name="Backward")
    verify_halves(joint, forward, backward)
    return forward, backward


def nodes_of_backward(joint: JointGraph, saved: Collection[fx.Node]) -> set[fx.Node]:
    """Return everything that a backward computes, given ``saved`` and the tangents."""
    computed = needs_of_backward(joint, saved).difference(saved, joint.tangents)
    for node in computed:
        assert node.op != "placeholder", f"the backward needs '{node.name}', which is not saved"
    return computed


def needs_of_backward(joint: JointGraph, saved: Collection[fx.Node]) -> set[fx.Node]:
    """Return everything that a backward computes or reads, given ``saved`` and the tangents."""
    given = {*saved, *joint.tangents}
    pending = [*joint.backward, *(gradient for gradient in joint.gradients if isinstance(gradient, fx.Node))]
    found = set[fx.Node]()
    while pending:
        node = pending.pop()
        if node not in found:
            found.add(node)
            pending.extend(_operands(joint, node) if node not in given else ())
    return found


def replayed_nodes(joint: JointGraph, computed: Iterable[fx.Node]) -> list[fx.Node]:
    """Return the random ops of the forward among what the backward computes."""
    return [node for node in computed if node in joint.forward and is_random(node)]


@dataclass(frozen=True)
class _HandedOver:
    """What the forward saves for the backward; for replayed ops, the generator state."""

    sizes: tuple[fx.Node, ...]
    tensors: tuple[fx.Node, ...]
    replayed: tuple[fx.Node, ...]


@dataclass
class _GraphCopy:
    """A graph built from copies of a joint graph's nodes."""

    graph: fx.Graph = field(default_factory=fx.Graph)
    copies: dict[fx.Node, fx.Node] = field(default_factory=dict)
    states: dict[fx.Node, fx.Node] = field(default_factory=dict)

    def add_placeholders(self, nodes: Iterable[fx.Node]) -> None:
        for node in nodes:
            self.copies[node] = self.graph.placeholder(node.name)
            self.copies[node].meta = dict(node.meta)

    def copy_of(self, node: fx.Node) -> fx.Node:
        return self.copies[node]

    def finish(self, outputs: Sequence[Argument], states: Iterable[fx.Node], sizes: Iterable[fx.Node]) -> fx.Graph:
        """Return the graph with its outputs: copies of nodes, generator states, then sizes."""
        returned = [self.copies[output] if isinstance(output, fx.Node) else output for output in outputs]
        returned += [self.states[node] for node in states]
        returned += [self.copies[node] for node in sizes]
        values = tuple(output.meta.get("val") if isinstance(output, fx.Node) else output for output in returned)
        self.graph.output(tuple(returned)).meta["val"] = values
        self.graph.lint()
        return self.graph


def _forward_graph(joint: JointGraph, handed_over: _HandedOver) -> fx.Graph:
    nodes, pending = set(joint.forward), [*handed_over.tensors, *handed_over.sizes]
    while pending:
        node = pending.pop()
        if node not in nodes:
            nodes.add(node)
            pending.extend(node.all_input_nodes)
    half = _GraphCopy()
    half.add_placeholders(joint.primals)
    replayed = set(handed_over.replayed)
    for node in joint.in_order(nodes.difference(joint.primals)):
        if node in replayed:
            half.copies[node], half.states[node] = record(half.graph, node, half.copy_of)
        else:
            half.copies[node] = half.graph.node_copy(node, half.copy_of)
    return half.finish([*joint.forward_outputs, *handed_over.tensors], handed_over.replayed, handed_over.sizes)


def _backward_graph(joint: JointGraph, handed_over: _HandedOver, computed: Iterable[fx.Node]) -> fx.Graph:
    half = _GraphCopy()
    half.add_placeholders([*handed_over.sizes, *handed_over.tensors])
    half.states = {node: state_placeholder(half.graph, node) for node in handed_over.replayed}
    half.add_placeholders(joint.tangents)
    for node in computed:
        half.copies[node] = _compute_in_backward(joint, node, half)
    return half.finish(joint.gradients, (), ())


def _compute_in_backward(joint: JointGraph, node: fx.Node, half: _GraphCopy) -> fx.Node:
    if node in half.states:
        return replay(half.graph, node, half.states[node], half.copy_of)
    recipe = recipe_of(node) if node in joint.forward else None
    if recipe is None:
        return half.graph.node_copy(node, half.copy_of)
    args = fx.map_arg(recipe.args, half.copy_of)
    cooked = half.graph.create_node("call_function", recipe.op, args, name=node.name)
    cooked.meta = dict(node.meta)
    return cooked


def _operands(joint: JointGraph, node: fx.Node) -> list[fx.Node]:
    return operands_to_recompute(node) if node in joint.forward else node.all_input_nodes


def _as_traced(joint: JointGraph, computed: Collection[fx.Node]) -> list[fx.Node]:
    return joint.in_order(computed)


def _recomputed_right_before_use(joint: JointGraph, computed: Collection[fx.Node]) -> list[fx.Node]:
    """Order ``computed`` so that backward nodes stay as traced and all others come right before their first use."""
    waiting = set(computed)
    ordered: list[fx.Node] = []
    traced = joint.in_order(computed)
    pending = [*reversed(traced), *(node for node in reversed(traced) if node in joint.backward)]
    while pending:
        node = pending[-1]
        missing = [operand for operand in _operands(joint, node) if operand in waiting] if node in waiting else []
        if missing:
            pending.extend(reversed(missing))
        else:
            pending.pop()
            if node in waiting:
                waiting.discard(node)
                ordered.append(node)
    return ordered
