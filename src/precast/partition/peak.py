"""How much memory a half needs at once, by the lifetimes of its values."""

from collections.abc import Collection, Sequence

import torch
from torch import fx

from precast.ops.cost import bytes_of
from precast.partition.storage import storage_root


def estimated_peak_bytes(module: fx.GraphModule, *, held: Collection[str] = ()) -> int:
    """Return the most bytes alive at once while ``module`` runs, each value freed after its last use.

    Inputs named in ``held`` belong to the caller and do not count; the others count until last read.
    """
    nodes = list(module.graph.nodes)
    roots = {node: storage_root(node) for node in nodes}
    last_use = dict[fx.Node, int]()
    for index, node in enumerate(nodes):
        for used in (node, *node.all_input_nodes):
            last_use[roots[used]] = index
    dying: dict[int, list[fx.Node]] = {}
    for root, index in last_use.items():
        dying.setdefault(index, []).append(root)
    # A tuple counts by its items, which live and die one by one.
    tensors = [root for root in set(roots.values()) if isinstance(root.meta.get("val"), torch.Tensor)]
    counted = {root: bytes_of(root.meta["val"]) for root in tensors if root.name not in held}
    alive = sum(size for root, size in counted.items() if root.op == "placeholder")
    peak = alive
    for index, node in enumerate(nodes):
        if node.op != "placeholder":
            alive += counted.get(node, 0)
        peak = max(peak, alive)
        alive -= sum(counted.get(root, 0) for root in dying.get(index, ()))
    return peak


def measured_saved_bytes(
    forward: fx.GraphModule,
    primals: Sequence[torch.Tensor | int],
    *,
    num_fwd_outputs: int,
    held: Collection[int] | None = None,
) -> int:
    """Run ``forward`` and return the memory its saved tensors keep alive beyond that of the ``held`` primals.

    By default all primals are taken to stay alive anyway.
    """
    with torch.no_grad():
        saved = forward(*primals)[num_fwd_outputs:]
    alive = primals if held is None else [primals[number] for number in held]
    inputs = {value.untyped_storage().data_ptr() for value in alive if isinstance(value, torch.Tensor)}
    storages = [value.untyped_storage() for value in saved if isinstance(value, torch.Tensor)]
    kept = {storage.data_ptr(): storage.nbytes() for storage in storages if storage.data_ptr() not in inputs}
    return sum(kept.values())
