"""The memory that saved values keep alive.

A view keeps its whole base alive; two views of one base count once. Memory that the caller holds anyway, parameters
and inputs, is not a cost of saving.
"""

from collections.abc import Collection, Iterable

from torch import fx
from torch._ops import OpOverload

from precast.ops.cost import bytes_of
from precast.ops.facts import is_view
from precast.partition.classify import JointGraph, is_item_of_tuple


def storage_root(node: fx.Node) -> fx.Node:
    """Return the node that allocated the storage of ``node``'s value."""
    while True:
        if is_item_of_tuple(node) and is_view(node.all_input_nodes[0]):
            node = node.all_input_nodes[0]
        elif is_view(node) and node.all_input_nodes:
            node = _viewed(node)
        else:
            return node


def saved_bytes(saved: Iterable[fx.Node], *, held: Collection[fx.Node]) -> int:
    """Return the memory that ``saved`` keeps alive beyond what ``held`` inputs do, each storage once."""
    roots = {storage_root(node) for node in saved}
    return sum(bytes_of(root.meta.get("val")) for root in roots.difference(held))


def held_primals(joint: JointGraph, static_lifetime_input_indices: Iterable[int] | None) -> frozenset[fx.Node]:
    """Return the inputs that stay alive whatever is saved.

    Without indices, all do: the caller passed them, and still has them. With indices, only those: any other input may
    be a temporary that only saving keeps alive.
    """
    if static_lifetime_input_indices is None:
        return frozenset(joint.primals)
    return frozenset(joint.primals[index] for index in static_lifetime_input_indices)


def _viewed(node: fx.Node) -> fx.Node:
    if isinstance(node.target, OpOverload):
        for argument, value in zip(node.target._schema.arguments, node.args, strict=False):
            if argument.alias_info is not None and isinstance(value, fx.Node):
                return value
    return node.all_input_nodes[0]
