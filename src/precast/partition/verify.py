"""Check that two halves fit each other and the joint graph they come from."""

from torch import fx

from precast.partition.classify import JointGraph, is_symbolic


def verify_halves(joint: JointGraph, forward: fx.GraphModule, backward: fx.GraphModule) -> None:
    """Fail, as our own bug, unless the forward hands over by name and order exactly what the backward takes."""
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
