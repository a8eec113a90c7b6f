"""Gives an exported graph its final form: no leftovers of tracing, and names that count from the op's own.

Before: ``add_3 = add(b_count, 1); _assert_tensor_metadata(x, …); detach = detach(c)``
After:  ``add = add(b_count, 1)``
"""

from collections.abc import Collection
from dataclasses import replace

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor

from precast.export.layouts import reshape_where_layout_is_open
from precast.export.names import with_counted_names
from precast.export.regions import fold_regions
from precast.export.sizes import collected_sizes
from precast.export.unlift import NORMALIZING_AND_UPDATING
from precast.ir.node_meta import set_value, tensor_of, value_of
from precast.ir.program import Program
from precast.ir.signature import ConstantArgument, InputKind, OutputSpec
from precast.ir.tensor_spec import TensorSpec
from precast.tracing.dead_code import remove_dead_nodes
from precast.tracing.trace import argument_spec

_aten = torch.ops.aten
# Inputs are checked for dtype and device at each call, so what follows from them needs no check inside.
_LEFTOVERS = (_aten._assert_tensor_metadata.default,)


def tidied(program: Program, *, requiring_grad: Collection[str] = ()) -> Program:
    """The same program, tidy; the input is left as it is. ``requiring_grad`` are the inputs that require grad."""
    graph = program.copy_graph()
    for node in list(graph.nodes):
        if node.target in _LEFTOVERS:
            graph.erase_node(node)
        elif node.target is _aten.copy.default and _is_plain_copy(node):
            node.replace_all_uses_with(node.args[1])
        elif node.target is _aten.clone.default and {user.target for user in node.users} <= NORMALIZING_AND_UPDATING:
            node.replace_all_uses_with(node.args[0])
    remove_dead_nodes(graph)
    reshape_where_layout_is_open(graph)
    program = with_ordered_constants(program.replace(graph=graph))
    program = program.replace(module=with_counted_names(fold_regions(program.module)))
    _note_required_gradients(program, requiring_grad)
    program = program.replace(sizes=collected_sizes(program))
    return program.replace(signature=program.signature.replace(outputs=named_outputs(program)))


def with_ordered_constants(program: Program) -> Program:
    """Constants in the order in which the graph first reads them, however tracing came upon them."""
    placeholders, specs = program.placeholders, program.signature.inputs
    positions = [i for i, spec in enumerate(specs) if spec.kind is InputKind.CONSTANT_TENSOR]
    first_use: dict[fx.Node, int] = {}
    for number, node in enumerate(program.graph.nodes):
        for position, source in enumerate(node.all_input_nodes):
            first_use.setdefault(source, number * 10_000 + position)
    ordered = sorted(positions, key=lambda i: first_use.get(placeholders[i], 0))
    if ordered == positions:
        return program
    graph = program.copy_graph()
    copies = [node for node in graph.nodes if node.op == "placeholder"]
    before = copies[positions[0]]
    for position in ordered:
        if copies[position] is not before:
            before.prepend(copies[position])
        else:
            before = before.next
    inputs = list(specs)
    for position, source in zip(positions, ordered, strict=True):
        inputs[position] = specs[source]
    return program.replace(graph=graph, signature=program.signature.replace(inputs=tuple(inputs)))


def _note_required_gradients(program: Program, names: Collection[str]) -> None:
    """Tracing notes inputs detached: give those that require grad a value that says so."""
    for node in program.placeholders:
        value = value_of(node)
        if node.name in names and isinstance(value, FakeTensor):
            with value.fake_mode:
                set_value(node, value.detach().requires_grad_())


def _is_plain_copy(node: fx.Node) -> bool:
    """Whether the written value is already what the written tensor becomes: same dtype, sizes and strides."""
    source = node.args[1]
    return isinstance(source, fx.Node) and TensorSpec.of(tensor_of(source)) == TensorSpec.of(tensor_of(node))


def named_outputs(program: Program) -> tuple[OutputSpec, ...]:
    """The signature's outputs with the names that the results have now."""
    pairs = enumerate(zip(program.signature.outputs, program.results, strict=True))
    arguments = [spec.arg if isinstance(spec.arg, ConstantArgument) else argument_spec(r, i) for i, (spec, r) in pairs]
    return tuple(map(lambda spec, arg: replace(spec, arg=arg), program.signature.outputs, arguments))
