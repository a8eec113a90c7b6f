"""What a partition saves that recomputes nothing: the values that the backward reads."""

from torch import fx

from precast.partition.classify import JointGraph, is_item_of_tuple, is_symbolic, is_tuple


def values_read_by_backward(joint: JointGraph) -> list[fx.Node]:
    """Return the forward values that backward or free nodes read, in order.

    Sizes, and items of tuples, that only the backward reads are taken in the forward: otherwise a whole tensor would be
    saved for its size, and a tuple cannot be saved at all.
    """
    available = set(joint.forward)
    for node in joint.in_order(joint.free):
        if (is_symbolic(node) or is_item_of_tuple(node)) and available.issuperset(node.all_input_nodes):
            available.add(node)
    outside = joint.backward | (joint.free - available)
    operands = {operand for node in outside for operand in node.all_input_nodes}
    passed_on = {gradient for gradient in joint.gradients if isinstance(gradient, fx.Node)}
    return [node for node in joint.in_order((operands | passed_on) & available) if _may_be_saved(node)]


def _may_be_saved(node: fx.Node) -> bool:
    """Tell whether a value can be handed over: attributes are read by both halves, tuples go item by item."""
    return node.op != "get_attr" and not is_tuple(node)
