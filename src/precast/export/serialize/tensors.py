"""State, constants and example inputs as storages in safetensors members, and a table of tensors over them.

Tensors that share memory share a storage, so aliases are preserved and everything is written once. A storage that one
dense tensor covers is stored under that tensor's dtype and shape, so that other tools can read it; any other as bytes.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import torch

from precast.artifact.dtypes import DTYPES
from precast.artifact.schema import Json, damaged
from precast.artifact.weights import Weight
from precast.errors import ExportError
from precast.export.serialize.constants import constant_from_json
from precast.graph.tensor_spec import dtype_name

NO_STORAGE = ""
"""The placeholder for the storage of a tensor on the meta device."""


@dataclass(frozen=True)
class StoredTensors:
    """Tensors to write: members by name, each with its storages, and the table of tensors."""

    members: dict[str, dict[str, Weight]]
    table: dict[str, Json]


def store_tensors(groups: Mapping[str, Mapping[str, torch.Tensor]]) -> StoredTensors:
    """Group tensors by storage. ``groups`` are members; names are ``member/name`` in the table."""
    placed: dict[int, list[tuple[str, str, torch.Tensor]]] = {}
    table: dict[str, Json] = {}
    for member, tensors in groups.items():
        for name, tensor in tensors.items():
            _check(f"{member}.{name}", tensor)
            if tensor.device.type == "meta":
                table[f"{member}/{name}"] = _record(tensor, tensor, NO_STORAGE, 0)
                continue
            tensor = _negated(tensor) if tensor.is_neg() else tensor
            placed.setdefault(_storage_id(tensor), []).append((member, name, tensor))
    members: dict[str, dict[str, Weight]] = {member: {} for member in groups}
    for sharing in placed.values():
        member, first, tensor = sharing[0]
        alone = len({id(each) for _, _, each in sharing}) == 1 and _covers_storage(tensor)
        compact = len(sharing) == 1 and not alone and not _needs_whole_storage(tensor)
        kept = tensor.detach().contiguous() if compact else tensor
        members[member][first] = _dense_weight(kept) if alone or compact else _bytes_weight(kept)
        for home, name, each in sharing:
            # A compact storage begins at the tensor, whatever its storage offset was.
            start = 0 if compact else int(each.storage_offset())
            table[f"{home}/{name}"] = _record(kept if compact else each, each, f"{member}/{first}", start)
    return StoredTensors(members, table)


def _check(name: str, tensor: torch.Tensor) -> None:
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or tensor.layout is not torch.strided:
        raise ExportError(
            f"{name} is of type {type(tensor).__name__} with layout {tensor.layout}.",
            why="a program's file holds plain strided tensors",
            fix="Convert it to a plain dense tensor before exporting.",
        )
    if tensor.is_quantized:
        raise ExportError(
            f"{name} is quantized.",
            why="a program's file holds the values of plain tensors",
            fix="Dequantize it before saving.",
        )


def _negated(tensor: torch.Tensor) -> torch.Tensor:
    """The values of a tensor that torch negates lazily, in memory of its own, with the same strides."""
    values = tensor.detach()
    if 0 in tensor.stride():
        plain = values.resolve_neg()
    else:
        plain = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device)
        plain.copy_(values)
    if isinstance(tensor, torch.nn.Parameter):
        return torch.nn.Parameter(plain, tensor.requires_grad)
    return plain.requires_grad_(tensor.requires_grad)


def _storage_id(tensor: torch.Tensor) -> int:
    # Empty tensors have no memory to share.
    return tensor.untyped_storage().data_ptr() or id(tensor)


def _covers_storage(tensor: torch.Tensor) -> bool:
    size = tensor.numel() * tensor.element_size()
    return tensor.is_contiguous() and not tensor.is_conj() and size == tensor.untyped_storage().nbytes()


def _needs_whole_storage(tensor: torch.Tensor) -> bool:
    """Whether strides must be preserved: the graph was traced for them."""
    return not tensor.is_contiguous() or tensor.is_conj()


def _dense_weight(tensor: torch.Tensor) -> Weight:
    if dtype_name(tensor.dtype) not in DTYPES:
        return _bytes_weight(tensor)
    return weight_of(tensor.detach().cpu())


def weight_of(tensor: torch.Tensor) -> Weight:
    """The tensor's own memory, reinterpreted as bits."""
    bits = tensor.view(torch.uint16) if tensor.dtype is torch.bfloat16 else tensor
    return Weight(dtype_name(tensor.dtype), bits.numpy())


def _bytes_weight(tensor: torch.Tensor) -> Weight:
    """The whole storage, as the widest integers that divide it, so that it is aligned."""
    storage = tensor.detach().untyped_storage().cpu()
    width = next(width for width in (torch.int64, torch.int32, torch.int16, torch.uint8) if _fits(storage, width))
    if not storage.nbytes():
        return Weight("u8", np.empty(0, dtype=np.uint8))
    flat = torch.empty(0, dtype=width).set_(storage)
    return Weight(dtype_name(width), flat.numpy())


def _fits(storage: torch.UntypedStorage, dtype: torch.dtype) -> bool:
    return storage.nbytes() % dtype.itemsize == 0


def _record(layout: torch.Tensor, tensor: torch.Tensor, storage: str, start: int) -> Json:
    return {
        "storage": storage,
        "dtype": str(tensor.dtype).removeprefix("torch."),
        "shape": list(layout.shape),
        "strides": list(layout.stride()),
        "offset": start,
        "parameter": isinstance(tensor, torch.nn.Parameter),
        "requires_grad": tensor.requires_grad,
        "conjugate": tensor.is_conj(),
        "device": str(tensor.device),
    }


def load_tensors(
    table: Mapping[str, Any], members: Mapping[str, Mapping[str, Weight]]
) -> dict[str, dict[str, torch.Tensor]]:
    """The tensors by member and name, over the storages' memory; every layout is validated first."""
    storages: dict[str, torch.UntypedStorage] = {}
    made: dict[tuple[Any, ...], torch.Tensor] = {}
    loaded: dict[str, dict[str, torch.Tensor]] = {member: {} for member in members}
    for path, record in table.items():
        member, _, name = path.partition("/")
        dtype = constant_from_json({"dtype": record["dtype"]})
        if record["storage"] == NO_STORAGE and member in loaded:
            loaded[member][name] = _described(path, record, dtype)
            continue
        weight = _find(members, record["storage"])
        _check_layout(path, record, dtype, weight.carrier.nbytes)
        if record["storage"] not in storages:
            storages[record["storage"]] = _as_storage(weight)
        key = (record["storage"], record["dtype"], *map(str, (record["shape"], record["strides"], record["offset"])))
        key = (*key, record["parameter"], record["conjugate"])
        if key not in made:
            made[key] = _make(record, dtype, storages[record["storage"]])
        if member not in loaded:
            raise damaged(f"the tensor {path!r} belongs to no part of the file", f"parts are {sorted(members)}")
        loaded[member][name] = made[key]
    return loaded


def _described(path: str, record: Mapping[str, Any], dtype: Any) -> torch.Tensor:
    """A tensor on the meta device, which has no values."""
    try:
        tensor = torch.empty_strided(record["shape"], record["strides"], dtype=dtype, device="meta")
        if record["parameter"]:
            return torch.nn.Parameter(tensor, requires_grad=record["requires_grad"])
        return tensor.requires_grad_(record["requires_grad"])
    except (RuntimeError, TypeError) as problem:
        raise damaged(f"the tensor {path!r} is malformed", str(problem)) from problem


def _find(members: Mapping[str, Mapping[str, Weight]], path: str) -> Weight:
    member, _, name = path.partition("/")
    if member not in members or name not in members[member]:
        raise damaged(f"a tensor is stored in {path!r}", "the file holds no such storage")
    return members[member][name]


def _check_layout(path: str, record: Any, dtype: torch.dtype, available: int) -> None:
    shape, strides, offset = record["shape"], record["strides"], record["offset"]
    if len(shape) != len(strides):
        raise damaged(f"the tensor {path!r} has other strides than sizes", "each size has its stride")
    last = offset + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    if prod(shape) and (last + 1) * dtype.itemsize > available:
        raise damaged(f"the tensor {path!r} ends outside its storage", f"the storage has {available} bytes")


def _as_storage(weight: Weight) -> torch.UntypedStorage:
    flat = weight.carrier.reshape(-1).view(np.uint8) if weight.carrier.size else np.empty(0, dtype=np.uint8)
    return torch.from_numpy(flat).untyped_storage()


def _make(record: Any, dtype: torch.dtype, storage: torch.UntypedStorage) -> torch.Tensor:
    tensor = torch.empty(0, dtype=dtype)
    tensor.set_(storage, record["offset"], record["shape"], record["strides"])
    if record["conjugate"]:
        tensor = tensor.conj()
    device = constant_from_json({"device": record["device"]})
    tensor = tensor if device.type == "cpu" else tensor.to(device)
    if record["parameter"]:
        return torch.nn.Parameter(tensor, requires_grad=record["requires_grad"])
    return tensor.requires_grad_(record["requires_grad"])
