"""Partition a joint graph by saving what the backward reads.

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


def default_partition(
    joint_module: fx.GraphModule,
    joint_inputs: Sequence[object],
    *,
    num_fwd_outputs: int,
    static_lifetime_input_indices: Sequence[int] | None = None,
    **_: object,
) -> tuple[fx.GraphModule, fx.GraphModule]:
    """Return the forward exactly as traced, saving what the backward reads, and the backward.

    Regions of ``torch.utils.checkpoint`` are recomputed as they ask. ``joint_inputs`` is taken for the sake of the
    common signature; the graph says all that is needed here.
    """
    # This function is many others' default, so that it is imported far more often than it is called.
    from precast.partition.classify import classify
    from precast.partition.network import build_network, minimum_cut
    from precast.partition.policy import has_checkpoints, judge_by_checkpoints_alone
    from precast.partition.read_values import values_read_by_backward
    from precast.partition.split import split
    from precast.partition.storage import held_primals

    joint = classify(joint_module, num_fwd_outputs=num_fwd_outputs)
    if has_checkpoints(joint):
        held = held_primals(joint, static_lifetime_input_indices)
        network = build_network(joint, judge_by_checkpoints_alone(joint), held=held)
        return split(joint, minimum_cut(network).saved)
    return split(joint, values_read_by_backward(joint), recompute_late=False)
