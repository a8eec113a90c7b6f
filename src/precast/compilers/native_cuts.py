"""Cuts the native part of a backward where that lets memory go early.

Before::

    native segment: a … z            every saved activation is alive until it ends

After::

    native segment: a … m            what only these read is freed here
    native segment: n … z
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import accumulate

import torch
from torch import fx

from precast.ir.graphs import placeholders_of
from precast.ir.node_meta import value_of
from precast.ops.cost import bytes_of

MIN_FREED = 16 * 2**20
"""A cut that frees less than this is not worth a call more."""
MAX_PARTS = 16


def saved_inputs(graph: fx.Graph) -> set[fx.Node]:
    """The inputs of a backward that the forward made for it: nobody else holds them. Empty for other graphs."""
    inputs = placeholders_of(graph)
    if not any(node.name.startswith("tangents_") for node in inputs):
        return set()
    return {node for node in inputs if not node.name.startswith(("primals_", "tangents_"))}


def parts(nodes: Sequence[fx.Node], freed: Collection[fx.Node]) -> list[Sequence[fx.Node]]:
    """``nodes`` in runs, such that each run but the last is the last to read a good share of ``freed``.

    Runs end where the least of what was computed is still to be read, and much less than is freed.
    """
    deaths = _deaths(nodes, freed)
    share = max(MIN_FREED, sum(deaths) // MAX_PARTS)
    crossing = _crossing_bytes(nodes)
    runs: list[Sequence[fx.Node]] = []
    start, gone, best = 0, 0, None
    for position in range(len(nodes) - 1):
        gone += deaths[position]
        if gone >= share and crossing[position] < (gone / 2 if best is None else crossing[best]):
            best = position
        if best is not None and gone >= 2 * share:
            runs.append(nodes[start : best + 1])
            start, gone, best = best + 1, sum(deaths[best + 1 : position + 1]), None
    return [*runs, nodes[start:]]


def _deaths(nodes: Sequence[fx.Node], freed: Collection[fx.Node]) -> list[int]:
    """For each node, the bytes of ``freed`` that it is the last to read."""
    last = {source: i for i, node in enumerate(nodes) for source in node.all_input_nodes if source in freed}
    deaths = [0] * len(nodes)
    for source, i in last.items():
        deaths[i] += bytes_of(value_of(source))
    return deaths


def _crossing_bytes(nodes: Sequence[fx.Node]) -> list[float]:
    """After each node, the bytes computed so far that later nodes read; infinite where a cut would part a tuple."""
    last = _last_readers(nodes)
    changes = [0.0] * (len(nodes) + 1)
    for position, node in enumerate(nodes):
        value = value_of(node)
        alive = bytes_of(value) if isinstance(value, torch.Tensor) else 1e18
        changes[position] += alive
        changes[last.get(node, position)] -= alive
    return list(accumulate(changes))


def _last_readers(nodes: Sequence[fx.Node]) -> Mapping[fx.Node, int]:
    inside = set(nodes)
    return {source: i for i, node in enumerate(nodes) for source in node.all_input_nodes if source in inside}
