"""The flow network whose minimum cut is the best set of values to save.

Before, three values of a graph::

    primals_1 ──▶ sin ──▶ exp ──▶ (read by the backward)

After, each value is an edge from "computed" to "available in the backward" with its bytes as capacity::

                   8            8            8
    source ═▶ p ─────▶ p' ═▶ s ────▶ s' ═▶ e ────▶ e' ═▶ sink          ═▶ has no limit
    source ────────────────▶ s, e    with the price of recomputing them

Cutting the edge of a value saves it. A value with both ends on the sink's side is recomputed, and pays its price; an
unlimited price forbids that. A value that only the backward reads pays a little, by an edge to the sink, for being
computed in the forward. Capacities are bytes, so the weight of a cut is the memory saved plus the prices.

The maximum flow is computed by SciPy's compiled Dinic, which uses 32-bit integers and wraps silently; bytes do not fit.
So the flow is found in rounds: first in coarse units, then the remainder of the rounding in finer ones. A round leaves
at most the number of edges times its unit, so two rounds suffice for networks of up to 2⁴⁵ bytes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from torch import fx

from precast.ops.cost import bytes_moved, bytes_of, flops
from precast.partition.classify import JointGraph, is_item_of_tuple, is_symbolic, is_tuple
from precast.partition.policy import Recompute, Verdict, operands_to_recompute
from precast.partition.replay import state_bytes
from precast.partition.storage import storage_root

if TYPE_CHECKING:
    from scipy.sparse import csr_array

_LARGEST = 2**30


def largest_source_side(
    tails: NDArray[np.int64], heads: NDArray[np.int64], capacities: NDArray[np.int64], *, source: int, sink: int
) -> NDArray[np.bool_]:
    """Return which vertices are on the source's side of the minimum cut that is nearest to the sink.

    No two edges may share both ends. A capacity no smaller than the sum of the limited ones means "no limit".
    """
    # Imported here: loading SciPy takes longer than the rest of a warm start.
    from scipy.sparse import csr_array

    vertices = int(max(tails.max(initial=1), heads.max(initial=1), source, sink)) + 1
    present = capacities > 0
    ends = (tails[present].astype(np.int32), heads[present].astype(np.int32))
    residual = csr_array((capacities[present], ends), shape=(vertices, vertices))
    bound = int(capacities.max(initial=0))
    while True:
        unit = max(1, -(-bound // _LARGEST))
        residual = residual - _flow(residual, unit, source=source, sink=sink)
        if unit == 1:
            return _cannot_reach(residual, sink)
        bound = unit * residual.nnz


def _flow(residual: csr_array, unit: int, *, source: int, sink: int) -> csr_array:
    from scipy.sparse.csgraph import maximum_flow

    coarse = residual.copy()
    coarse.data = np.minimum(coarse.data // unit, _LARGEST).astype(np.int32)
    coarse.eliminate_zeros()
    coarse.indices, coarse.indptr = coarse.indices.astype(np.int32), coarse.indptr.astype(np.int32)
    return maximum_flow(coarse, source, sink).flow.astype(np.int64) * unit


def _cannot_reach(residual: csr_array, sink: int) -> NDArray[np.bool_]:
    from scipy.sparse.csgraph import breadth_first_order

    open_edges = residual.T.tocsr()
    open_edges.eliminate_zeros()
    reaching = breadth_first_order(open_edges, sink, directed=True, return_predecessors=False)
    cannot = np.ones(residual.shape[0], dtype=np.bool_)
    cannot[reaching] = False
    return cannot


# Moving a byte takes about as long as this many floating-point operations, on most current machines.
FLOPS_PER_BYTE = 10
# Recomputing is worth it while it moves fewer than this many bytes for each byte it saves.
BYTES_MOVED_PER_BYTE_SAVED = 64

SOURCE, SINK = 0, 1


@dataclass(frozen=True)
class Network:
    """Edges with capacities, and for each node what it costs to save and to recompute.

    Node number ``i`` enters at vertex ``2 + 2 * i`` and leaves at the vertex after it. Edges come in this order: one
    that saves each node, one with the price of recomputing it, the unlimited ones, and the last ``movable`` ones, which
    price work that would move from the backward to the forward.
    """

    nodes: tuple[fx.Node, ...]
    tails: NDArray[np.int64]
    heads: NDArray[np.int64]
    save_bytes: NDArray[np.int64]
    state_bytes: NDArray[np.int64]
    prices: NDArray[np.int64]
    work: NDArray[np.float64]
    movable: int
    unlimited: int


@dataclass(frozen=True)
class Cut:
    """The result of a cut: the nodes to save, in order, and the memory they keep alive, including generator states."""

    saved: tuple[fx.Node, ...]
    saved_bytes: int


def build_network(joint: JointGraph, verdicts: Mapping[fx.Node, Verdict], *, held: Collection[fx.Node]) -> Network:
    """Return the network of all values that could be saved for the backward, priced by ``verdicts``."""
    reads = joint.reads_of_backward()
    nodes = joint.in_order(_reachable(reads, joint, verdicts))
    number = {node: index for index, node in enumerate(nodes)}
    data = [(number[operand], number[node]) for node in nodes for operand in _operands(node, joint, verdicts)]
    states = [state_bytes(node) if node in joint.forward else 0 for node in nodes]
    save = [_bytes_to_save(node, verdicts, held) for node in nodes]
    unlimited = sum(size for size in save if size is not None) + sum(states) + 1
    prices = [_price(node, verdicts) for node in nodes]
    operands, users = np.array(data, dtype=np.int64).reshape(-1, 2).T
    every = np.arange(len(nodes), dtype=np.int64)
    read = np.array([number[node] for node in reads], np.int64)
    movable = np.array([number[node] for node in nodes if _moves_work(node, joint)], np.int64)
    enter, leave = 2, 3
    return Network(
        nodes=tuple(nodes),
        tails=np.concatenate(
            [enter + 2 * every, 0 * every + SOURCE, leave + 2 * operands, leave + 2 * read, enter + 2 * movable]
        ),
        heads=np.concatenate(
            [leave + 2 * every, enter + 2 * every, enter + 2 * users, 0 * read + SINK, 0 * movable + SINK]
        ),
        save_bytes=np.array([unlimited if size is None else size for size in save], np.int64),
        state_bytes=np.array(states, np.int64),
        prices=np.array([unlimited if price is None else min(price, unlimited) for price in prices], np.int64),
        work=np.array([_work(node, verdicts) for node in nodes], np.float64),
        movable=len(movable),
        unlimited=unlimited,
    )


def minimum_cut(network: Network, prices: NDArray[np.int64] | None = None) -> Cut:
    """Return the cut of least bytes and prices; of several, the one that recomputes least."""
    chosen = network.prices if prices is None else prices
    others = np.full(len(network.tails) - 2 * len(network.nodes) - network.movable, network.unlimited, np.int64)
    # All work moved to the forward counts less than one byte in total: it only breaks ties.
    scaled = np.concatenate([network.save_bytes, chosen, others]) * (network.movable + 1)
    capacities = np.concatenate([scaled, np.ones(network.movable, np.int64)])
    on_source_side = largest_source_side(network.tails, network.heads, capacities, source=SOURCE, sink=SINK)
    entry, leaving = on_source_side[2::2], on_source_side[3::2]
    saved, recomputed = entry & ~leaving, ~entry
    return Cut(
        saved=tuple(network.nodes[index] for index in np.flatnonzero(saved)),
        saved_bytes=int(network.save_bytes[saved].sum() + network.state_bytes[recomputed].sum()),
    )


def _reachable(
    reads: Collection[fx.Node], joint: JointGraph, verdicts: Mapping[fx.Node, Verdict]
) -> frozenset[fx.Node]:
    found, pending = set[fx.Node](), list(reads)
    while pending:
        node = pending.pop()
        if node not in found:
            found.add(node)
            pending.extend(_operands(node, joint, verdicts))
    return frozenset(found)


def _operands(node: fx.Node, joint: JointGraph, verdicts: Mapping[fx.Node, Verdict]) -> list[fx.Node]:
    """Return what recomputing ``node`` reads; nothing if it is never recomputed."""
    if node in joint.free:
        return node.all_input_nodes
    return [] if verdicts[node].recompute is Recompute.NEVER else operands_to_recompute(node)


def _bytes_to_save(node: fx.Node, verdicts: Mapping[fx.Node, Verdict], held: Collection[fx.Node]) -> int | None:
    """Return the bytes that saving a value keeps alive; None if it must not be saved."""
    if node in held or is_symbolic(node):
        return 0
    if node.op == "get_attr" or is_tuple(node) or storage_root(node) is not node or _is_asked(node, verdicts):
        return None
    return bytes_of(node.meta.get("val"))


def _is_asked(node: fx.Node, verdicts: Mapping[fx.Node, Verdict]) -> bool:
    owner = node.all_input_nodes[0] if is_item_of_tuple(node) else node
    return owner in verdicts and verdicts[owner].recompute is Recompute.ASKED


def _price(node: fx.Node, verdicts: Mapping[fx.Node, Verdict]) -> int | None:
    """Return the price of recomputing a value without a budget; None if it is forbidden."""
    if node not in verdicts:
        return 0
    match verdicts[node].recompute:
        case Recompute.NEVER | Recompute.COSTLY:
            return None
        case Recompute.CHEAP:
            return 1 + bytes_moved(node) // BYTES_MOVED_PER_BYTE_SAVED
        case _:
            return state_bytes(node)


def _moves_work(node: fx.Node, joint: JointGraph) -> bool:
    """Whether computing a node in the forward would be additional work there."""
    return node in joint.free and not is_symbolic(node) and not is_item_of_tuple(node)


def _work(node: fx.Node, verdicts: Mapping[fx.Node, Verdict]) -> float:
    if node not in verdicts:
        return 0.0
    match verdicts[node].recompute:
        case Recompute.NEVER:
            return float("inf")
        case Recompute.CHEAP | Recompute.COSTLY:
            return float(flops(node) + FLOPS_PER_BYTE * bytes_moved(node))
        case _:
            return 0.0
