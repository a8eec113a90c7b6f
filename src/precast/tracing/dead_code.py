"""Drops nodes whose results nobody reads and that do nothing else.

Before: ``a = exp(x); b = detach(a); return (x,)``. After: ``return (x,)``.
"""

from torch import fx

from precast.ops.facts import is_pure, is_random


def remove_dead_nodes(graph: fx.Graph) -> int:
    """Edit ``graph`` in place, from the end to the start; gives how many nodes went."""
    removed = 0
    for node in reversed(graph.nodes):
        if node.op in ("placeholder", "output") or node.users:
            continue
        # A dead random op still advances the generator: dropping it would change later draws.
        if node.op == "get_attr" or (is_pure(node) and not is_random(node)):
            graph.erase_node(node)
            removed += 1
    return removed
