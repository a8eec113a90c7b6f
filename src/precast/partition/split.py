"""Cut a joint graph in two, given what is saved.

Before::

    joint(primals_1, tangents_1):
        sin = sin(primals_1); exp = exp(sin); mul = mul(tangents_1, exp); ...
        return [exp, mul_1]

After, saving ``sin``::

    forward(primals_1):                        backward(sin, tangents_1):
        sin = sin(primals_1); exp = exp(sin)       exp = exp(sin); mul = mul(tangents_1, exp); ...
        return (exp, sin)                          return (mul_1,)

What the backward needs and is not given, it computes again. Nodes keep names and metadata.
"""

from collections.abc import Collection, Iterable, Sequence

from torch import fx
from torch.fx.node import Argument

from precast.partition.classify import JointGraph, is_symbolic


def split(
    joint: JointGraph, saved: Collection[fx.Node], *, recompute_late: bool = True
) -> tuple[fx.GraphModule, fx.GraphModule]:
    """Return the forward that also returns ``saved``, and the backward that starts from it.

    With ``recompute_late`` the backward computes a value again right before its first use, so that it lives no longer
    than needed; otherwise in the order of tracing.
    """
    tensors = [node for node in saved if not is_symbolic(node)]
    sizes = [node for node in saved if is_symbolic(node)]
    forward = _forward_graph(joint, [*tensors, *sizes])
    backward = _backward_graph(joint, [*sizes, *tensors], recompute_late=recompute_late)
    return (
        fx.GraphModule(joint.module, forward, class_name="Forward"),
        fx.GraphModule(joint.module, backward, class_name="Backward"),
    )


def nodes_of_backward(joint: JointGraph, saved: Collection[fx.Node]) -> set[fx.Node]:
    """Return all that a backward computes when it is given ``saved`` and the tangents."""
    given = {*saved, *joint.tangents}
    roots = [*joint.backward, *(gradient for gradient in joint.gradients if isinstance(gradient, fx.Node))]
    found, pending = set[fx.Node](), roots
    while pending:
        node = pending.pop()
        if node not in found and node not in given:
            assert node.op != "placeholder", f"the backward needs '{node.name}', which is not saved"
            found.add(node)
            pending.extend(node.all_input_nodes)
    return found


def _forward_graph(joint: JointGraph, saved: Sequence[fx.Node]) -> fx.Graph:
    nodes, pending = set(joint.forward), list(saved)
    while pending:
        node = pending.pop()
        if node not in nodes:
            nodes.add(node)
            pending.extend(node.all_input_nodes)
    computed = joint.in_order(nodes.difference(joint.primals))
    return _copy(joint.primals, computed, [*joint.forward_outputs, *saved])


def _backward_graph(joint: JointGraph, saved: Sequence[fx.Node], *, recompute_late: bool) -> fx.Graph:
    computed = joint.in_order(nodes_of_backward(joint, saved))
    if recompute_late:
        computed = _recomputed_right_before_use(joint, computed)
    return _copy([*saved, *joint.tangents], computed, joint.gradients)


def _recomputed_right_before_use(joint: JointGraph, computed: Sequence[fx.Node]) -> list[fx.Node]:
    """Order ``computed`` so that its backward nodes stay as traced and all others come when first read."""
    waiting = set(computed)
    ordered: list[fx.Node] = []

    def emit(node: fx.Node) -> None:
        needed, pending = list[fx.Node](), [node]
        while pending:
            current = pending.pop()
            if current in waiting:
                waiting.discard(current)
                needed.append(current)
                pending.extend(current.all_input_nodes)
        ordered.extend(joint.in_order(needed))

    for node in computed:
        if node in joint.backward:
            emit(node)
    for node in computed:
        emit(node)
    return ordered


def _copy(inputs: Iterable[fx.Node], computed: Iterable[fx.Node], outputs: Iterable[Argument]) -> fx.Graph:
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for node in inputs:
        copies[node] = graph.placeholder(node.name)
        copies[node].meta = dict(node.meta)
    for node in computed:
        copies[node] = graph.node_copy(node, copies.__getitem__)
    returned = tuple(copies[output] if isinstance(output, fx.Node) else output for output in outputs)
    graph.output(returned).meta["val"] = tuple(
        output.meta.get("val") if isinstance(output, fx.Node) else output for output in outputs
    )
    graph.lint()
    return graph
