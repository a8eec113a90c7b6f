"""A backward for other tangents than those that a forward was split for, from what that forward saves.

Before::

    joint(primals_1, tangents_1, tangents_2) -> (out, out_1, gradient)     # split, saving [sin, primals_1]
    joint(primals_1, tangents_1)             -> (out, out_1, gradient)     # the second output is not used

After::

    backward(sin, tangents_1) -> (gradient,)                               # takes the first of what was saved

The two joint graphs are traces of one program. A saved value is found in the other one by what it is computed from:
names tell nothing of nodes that are traced in the backward, whose number and order differ.
"""

import hashlib
from collections.abc import Sequence

from torch import fx

from precast.ops.facts import is_pure, is_random
from precast.partition.classify import classify, descendants
from precast.partition.replay import state_name
from precast.partition.split import needs_of_backward, split


def identities_of_saved(joint_module: fx.GraphModule, backward: fx.GraphModule) -> tuple[str, ...]:
    """What each value is that a backward takes beside its tangents, in words that hold for every trace."""
    known = _identities(joint_module.graph)
    names = [node.name for node in backward.graph.find_nodes(op="placeholder")]
    return tuple(known.get(name, f"unknown {name}") for name in names if not name.startswith("tangents"))


def backward_from_saved(
    joint_module: fx.GraphModule, saved: Sequence[str], *, num_fwd_outputs: int
) -> tuple[fx.GraphModule, tuple[int, ...]] | None:
    """The backward of a joint graph that starts from values which another forward saved, and which of these it takes.

    None where it needs others.
    """
    known = _identities(joint_module.graph)
    places = {identity: place for place, identity in enumerate(saved)}
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
    """The identity of each node, and of the states of generators that it may be handed over with, by name.

    Nodes that draw numbers, and constants, are told by their names if they come before all of the backward: up to there
    the traces are the same.
    """
    in_backward = descendants(node for node in graph.find_nodes(op="placeholder") if node.name.startswith("tangents"))
    found: dict[fx.Node, str] = {}
    states: dict[str, str] = {}
    is_forward = True
    for node in graph.nodes:
        is_forward = is_forward and (node.op == "placeholder" or node not in in_backward)
        if node in in_backward or node.op == "output":
            continue
        is_told_by_name = node.op != "call_function" or is_random(node) or not is_pure(node)
        if not is_told_by_name and all(operand in found for operand in node.all_input_nodes):
            operands = fx.map_arg((node.args, node.kwargs), found.__getitem__)
            found[node] = hashlib.blake2b(f"{node.target} {operands}".encode(), digest_size=16).hexdigest()
        elif is_told_by_name and is_forward:
            found[node] = f"{node.name} {node.target}"
            states[state_name(node)] = f"state of {node.name}"
    return {**states, **{node.name: identity for node, identity in found.items()}}
