"""Where a call reads tensors of Python's state, and what it adds there, as data.

Places and holders are told by their number in a walk over that state, and by their path: where state is described as
equal, a walk meets them in the same order. What is not found where it was is not found at all.
"""

from collections.abc import Sequence
from itertools import repeat
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree as pytree

from precast.autograd.warm.stored_containers import constant_data, constant_of, tree_builder, tree_data
from precast.cache import Indescribable
from precast.trace.state.places import NOWHERE, Place, Readings, Sized
from precast.trace.state.reachable import ReachableState

if TYPE_CHECKING:
    from precast.trace.state.snapshot import Write, Writes

Told = tuple[int, str]
"""A number and a path."""


def captured_data(captured: Readings, state: ReachableState) -> list[Told]:
    """Where captured tensors are read. Raises Indescribable."""
    return [_told_tensor(tensor, state) for tensor in captured.read()]


def captured_of(data: Sequence[Told], state: ReachableState) -> Readings:
    """The readings again. Raises Indescribable."""
    return Readings([_home(told, state) for told in data]) if data else NOWHERE


def _told_tensor(tensor: Any, state: ReachableState) -> Told:
    for number, (identity, homes) in enumerate(state.tensors.items()):
        if identity == id(tensor):
            return number, homes[0].path
    raise Indescribable("a tensor that is kept nowhere")


def _home(told: Told, state: ReachableState) -> Place:
    number, path = told
    homes = list(state.tensors.values())[number] if number < len(state.tensors) else []
    if not homes or homes[0].path != path:
        raise Indescribable(f"a tensor in {path}, which is not there")
    return homes[0]


def writes_data(writes: "Writes", state: ReachableState) -> dict[str, Any]:
    """What a call adds to containers in ``state``. Raises Indescribable for all else that it writes."""
    assert writes.tree is not None, "something was written"
    data = tree_data(writes.tree)
    if writes.shared or _tree(data) != writes.tree:
        raise Indescribable("containers that the program makes and leaves in Python's state")
    return {"tree": data, "writes": [_write_data(write, state) for write in writes.writes]}


def writes_of(data: dict[str, Any], state: ReachableState) -> "Writes":
    """The writes again. Raises Indescribable."""
    # It comes with the tracer, which calls without writes start without.
    from precast.trace.state.snapshot import Write, Writes

    writes = [
        Write.adding(_sized(each["holder"], state), [], [_key(key, state) for key in each["keys"]])
        for each in data["writes"]
    ]
    return Writes(tuple(writes), _tree(data["tree"]))


def _tree(data: Any) -> pytree.TreeSpec:
    return pytree.tree_structure(tree_builder(data)(repeat(0)))


def _write_data(write: "Write", state: ReachableState) -> dict[str, Any]:
    for number, sized in enumerate(state.sized):
        if write.added_to is not None and sized.holder is write.added_to.holder:
            return {"holder": (number, sized.path), "keys": [_key_data(key, state) for _, key in write.homes]}
    raise Indescribable(f"what the program writes into {write.path}")


def _sized(told: Told, state: ReachableState) -> Sized:
    number, path = told
    if number >= len(state.sized) or state.sized[number].path != path:
        raise Indescribable(f"{path}, which is not there")
    return state.sized[number]


def _key_data(key: Any, state: ReachableState) -> dict[str, Any]:
    if isinstance(key, torch.Tensor):
        return {"tensor": _told_tensor(key, state)}
    return {"constant": constant_data(key)}


def _key(data: dict[str, Any], state: ReachableState) -> Any:
    return _home(data["tensor"], state).read() if "tensor" in data else constant_of(data["constant"])
