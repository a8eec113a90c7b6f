"""Stores where a call reads tensors in Python state, and what it adds there, as data.

Places and holders are identified by their number in a walk over that state, and by their path: if two states have
equal descriptions, a walk visits them in the same order. If the number and the path do not match, the lookup fails.
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

Located = tuple[int, str]
"""A number and a path."""


def captured_data(captured: Readings, state: ReachableState) -> list[Located]:
    """The places where captured tensors are read. Raises Indescribable."""
    return [_located_tensor(tensor, state) for tensor in captured.read()]


def captured_of(data: Sequence[Located], state: ReachableState) -> Readings:
    """Rebuild the readings. Raises Indescribable."""
    return Readings([_home(located, state) for located in data]) if data else NOWHERE


def _located_tensor(tensor: Any, state: ReachableState) -> Located:
    for number, (identity, homes) in enumerate(state.tensors.items()):
        if identity == id(tensor):
            return number, homes[0].path
    raise Indescribable("a tensor that is kept nowhere")


def _home(located: Located, state: ReachableState) -> Place:
    number, path = located
    homes = list(state.tensors.values())[number] if number < len(state.tensors) else []
    if not homes or homes[0].path != path:
        raise Indescribable(f"a tensor in {path}, which does not exist")
    return homes[0]


def writes_data(writes: "Writes", state: ReachableState) -> dict[str, Any]:
    """What a call adds to containers in ``state``. Raises Indescribable for any other write."""
    assert writes.tree is not None, "something was written"
    data = tree_data(writes.tree)
    if writes.shared or _tree(data) != writes.tree:
        raise Indescribable("containers that the program makes and leaves in Python's state")
    return {"tree": data, "writes": [_write_data(write, state) for write in writes.writes]}


def writes_of(data: dict[str, Any], state: ReachableState) -> "Writes":
    """Rebuild the writes. Raises Indescribable."""
    # Imported here: it loads the tracer, which calls without writes do not need.
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


def _sized(located: Located, state: ReachableState) -> Sized:
    number, path = located
    if number >= len(state.sized) or state.sized[number].path != path:
        raise Indescribable(f"{path}, which does not exist")
    return state.sized[number]


def _key_data(key: Any, state: ReachableState) -> dict[str, Any]:
    if isinstance(key, torch.Tensor):
        return {"tensor": _located_tensor(key, state)}
    return {"constant": constant_data(key)}


def _key(data: dict[str, Any], state: ReachableState) -> Any:
    return _home(data["tensor"], state).read() if "tensor" in data else constant_of(data["constant"])
