"""The default partition: save everything that the backward reads, recompute nothing.

Before::

    joint(primals_1, tangents_1):
        sin = sin(primals_1); exp = exp(sin); mul = mul(tangents_1, exp); cos = cos(primals_1); mul_1 = mul(mul, cos)
        return [exp, mul_1]

After::

    forward(primals_1):                     backward(primals_1, exp, tangents_1):
        sin = sin(primals_1)                    mul = mul(tangents_1, exp)
        exp = exp(sin)                          cos = cos(primals_1); mul_1 = mul(mul, cos)
        return (exp, primals_1, exp)            return (mul_1,)
"""

from collections.abc import Sequence

from torch import fx

from precast.partition.classify import JointGraph, is_item_of_tuple, is_symbolic, is_tuple


def default_partition(
    joint_module: fx.GraphModule,
    joint_inputs: Sequence[object],
    *,
    num_fwd_outputs: int,
    static_lifetime_input_indices: Sequence[int] | None = None,
    **_: object,
) -> tuple[fx.GraphModule, fx.GraphModule]:
    """Split a joint graph: the forward is exactly what was traced, and saves every value that the backward reads.

    Regions of ``torch.utils.checkpoint`` are recomputed according to their policy. ``joint_inputs`` is part of the
    signature that all partitioners share, and is not used.
    """
    # Imported here: this function is a default argument, and so imported far more often than called.
    from precast.partition.classify import classify
    from precast.partition.network import build_network, minimum_cut
    from precast.partition.policy import has_checkpoints, judge_by_checkpoints_alone
    from precast.partition.split import split, with_fewest_sizes, with_sizes_of_forward
    from precast.partition.storage import held_primals

    joint = classify(joint_module, num_fwd_outputs=num_fwd_outputs)
    if has_checkpoints(joint):
        held = held_primals(joint, static_lifetime_input_indices)
        network = build_network(joint, judge_by_checkpoints_alone(joint), held=held)
        return split(joint, with_fewest_sizes(joint, minimum_cut(network).saved))
    return split(joint, with_sizes_of_forward(joint, values_read_by_backward(joint)), recompute_late=False)


def values_read_by_backward(joint: JointGraph) -> list[fx.Node]:
    """Return the forward values that backward or free nodes read, in order.

    Sizes and tuple items that only the backward reads are computed in the forward: otherwise a whole tensor would be
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
    """Whether a value can be saved: attributes are read by both halves, tuples are saved item by item."""
    return node.op != "get_attr" and not is_tuple(node)
