"""Builds a partial backward, for a subset of the tangents, from the values that the existing forward saves.

Before::

    joint(primals_1, tangents_1, tangents_2) -> (out, out_1, gradient)     # split, saving [sin, primals_1]
    joint(primals_1, tangents_1)             -> (out, out_1, gradient)     # the second output is not used

After::

    backward(sin, tangents_1) -> (gradient,)                               # takes the first saved value

The two joint graphs are traces of one program. A saved value is identified in the other one by how it is computed:
names of nodes that are traced in the backward do not match, since their number and order differ.
"""

import hashlib
from collections.abc import Collection, Sequence

from torch import fx

from precast.graph.nodes import placeholders_of
from precast.ops.facts import is_pure, is_random
from precast.partition.classify import classify, descendants
from precast.partition.replay import state_name
from precast.partition.split import needs_of_backward, split


def identities_of_saved(joint_module: fx.GraphModule, backward: fx.GraphModule) -> tuple[str, ...]:
    """An identity, the same in every trace, for each saved value that a backward takes."""
    known = _identities(joint_module.graph)
    names = [node.name for node in backward.graph.find_nodes(op="placeholder")]
    return tuple(known.get(name, f"unknown {name}") for name in names if not name.startswith("tangents"))


def backward_from_saved(
    joint_module: fx.GraphModule, saved: Sequence[str], *, num_fwd_outputs: int, primals: Collection[int] = ()
) -> tuple[fx.GraphModule, tuple[int, ...]] | None:
    """The backward of a joint graph over the saved values of another forward, and where its inputs are.

    An input is the position of a saved value, or ``~number`` for a primal. ``primals`` are the numbers of those that
    may be taken: what was not saved is recomputed from them, since the other forward's partition may have rewritten
    its graph before it chose what to save. None if the backward needs other values.
    """
    known = _identities(joint_module.graph)
    placeholders = placeholders_of(joint_module.graph)
    places = {known[placeholders[number].name]: ~number for number in primals}
    places |= {identity: place for place, identity in enumerate(saved)}
    joint = classify(joint_module, num_fwd_outputs=num_fwd_outputs)
    given = {node for node in joint_module.graph.nodes if known.get(node.name) in places}
    needed = needs_of_backward(joint, given)
    if any(node.op == "placeholder" for node in needed.difference(given, joint.tangents)):
        return None
    _, backward = split(joint, joint.in_order(given & needed))
    taken = [places.get(identity) for identity in identities_of_saved(joint_module, backward)]
    found = tuple(place for place in taken if place is not None)
    return (backward, found) if len(found) == len(taken) else None


def _identities(graph: fx.Graph) -> dict[str, str]:
    """The identity of each node, and of its saved generator state if it has one, by name.

    Random ops and constants are identified by name if they come before the whole backward: up to there, the traces are
    the same.
    """
    in_backward = descendants(node for node in graph.find_nodes(op="placeholder") if node.name.startswith("tangents"))
    found: dict[fx.Node, str] = {}
    states: dict[str, str] = {}
    is_forward = True
    for node in graph.nodes:
        is_forward = is_forward and (node.op == "placeholder" or node not in in_backward)
        if node in in_backward or node.op == "output":
            continue
        is_by_name = node.op != "call_function" or is_random(node) or not is_pure(node)
        if not is_by_name and all(operand in found for operand in node.all_input_nodes):
            operands = fx.map_arg((node.args, node.kwargs), found.__getitem__)
            found[node] = hashlib.blake2b(f"{node.target} {operands}".encode(), digest_size=16).hexdigest()
        elif is_by_name and is_forward:
            found[node] = f"{node.name} {node.target}"
            states[state_name(node)] = f"state of {node.name}"
    return {**states, **{node.name: identity for node, identity in found.items()}}
