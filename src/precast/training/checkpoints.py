"""Checkpoints of a step: one file a process, and an index that is written when all of them are complete.

``index.json`` names the folder of the newest whole checkpoint; those before are removed after it was written. So there
is a whole one at every moment, whatever is killed. Shards are put together again for another number of processes.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.optim import Optimizer

from precast.artifact.archive import write_file
from precast.artifact.weights import Weight, read_weights, weight_pieces
from precast.errors import ArtifactError
from precast.packaging.samples import as_weight
from precast.training.placement import Placement, ShardedOptimizer, as_rows

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

INDEX = "index.json"
_SEED = "random.seed"
_SHARD = "shards."


@dataclass(frozen=True)
class Rank:
    """A process's place among those that train together."""

    number: int = 0
    count: int = 1
    group: ProcessGroup | None = None

    @classmethod
    def of(cls, group: ProcessGroup | None) -> Rank:
        return cls() if group is None else cls(group.rank(), group.size(), group)

    def meet(self) -> None:
        """Wait for all."""
        if self.group is not None:
            torch.distributed.barrier(self.group)


def write_checkpoint(
    folder: Path, tensors: Mapping[str, torch.Tensor], optimizer: Optimizer, placement: Placement, rank: Rank
) -> None:
    """Write this process's part, and, in the first, the index."""
    folder.mkdir(parents=True, exist_ok=True)
    before = _index(folder) if (folder / INDEX).exists() else None
    name = f"checkpoint-{0 if before is None else int(before['folder'].rpartition('-')[2]) + 1}"
    rank.meet()
    own = folder / name
    own.mkdir(exist_ok=True)
    sharded = _sharded(tensors, placement)
    kept = {key: as_weight(tensor.detach()) for key, tensor in tensors.items()
            if key in sharded or key == _SEED or rank.number == 0}  # fmt: skip
    write_file(own / _file(rank.number, rank.count), weight_pieces(kept))
    rank.meet()
    if rank.number == 0:
        content = {
            "folder": name,
            "processes": rank.count,
            "sharded": sharded,
            "groups": [_numbers(group) for group in optimizer.param_groups],
        }
        write_file(folder / INDEX, [json.dumps(content, indent=1).encode()])
        for other in folder.glob("checkpoint-*"):
            if other.name != name:
                shutil.rmtree(other, ignore_errors=True)
    rank.meet()


def read_checkpoint(
    folder: Path, tensors: Mapping[str, torch.Tensor], optimizer: Optimizer, placement: Placement, rank: Rank
) -> None:
    """Write a checkpoint into these tensors; one that does not fit changes nothing."""
    index = _index(folder)
    parts = [
        _read(folder / index["folder"] / _file(number, index["processes"])) for number in range(index["processes"])
    ]
    if index["sharded"].keys() != _sharded(tensors, placement).keys():
        raise _other(folder, "it is cut into shards otherwise")
    found = {}
    for name, tensor in tensors.items():
        if name in index["sharded"]:
            whole = torch.cat([_tensor(part, name, folder).flatten() for part in parts])[: index["sharded"][name]]
            found[name] = as_rows(whole, rank.count)[rank.number]
        else:
            part = parts[rank.number % len(parts)] if name == _SEED else parts[0]
            found[name] = _tensor(part, name, folder)
        if found[name].shape != tensor.shape or found[name].dtype != tensor.dtype:
            raise _other(folder, f"{name} is {found[name].dtype} {list(found[name].shape)} in it")
    with torch.no_grad():
        for name, tensor in tensors.items():
            tensor.copy_(found[name])
    for group, numbers in zip(optimizer.param_groups, index["groups"], strict=True):
        group.update({name: tuple(each) if isinstance(each, list) else each for name, each in numbers.items()})


def _sharded(tensors: Mapping[str, torch.Tensor], placement: Placement) -> dict[str, int]:
    """The tensors of which each process has a part, and how many elements all parts hold."""
    if not isinstance(placement, ShardedOptimizer):
        return {}
    return dict(_shards(tensors, placement))


def _shards(tensors: Mapping[str, torch.Tensor], placement: ShardedOptimizer) -> Iterator[tuple[str, int]]:
    for name, tensor in tensors.items():
        _, is_shard, rest = name.partition(f".{_SHARD}")
        if is_shard:
            number = int(rest.partition(".")[0])
            if tensor.shape == tensors[f"optimizer.{_SHARD}{number}"].shape and tensor.dim():
                yield name, placement.shapes[number].numel()


def _numbers(group: Mapping[str, Any]) -> dict[str, Any]:
    plain = (bool, int, float, str, tuple, list, type(None))
    return {name: value for name, value in group.items() if name != "params" and isinstance(value, plain)}


def _file(number: int, count: int) -> str:
    return f"process-{number:05}-of-{count:05}.safetensors"


def _index(folder: Path) -> dict[str, Any]:
    try:
        content = json.loads((folder / INDEX).read_text())
    except (OSError, ValueError) as problem:
        raise ArtifactError(
            f"{folder} holds no checkpoint", why=str(problem), fix="name a folder that save_checkpoint wrote to"
        ) from problem
    name, count = content.get("folder"), content.get("processes")
    if not isinstance(name, str) or not name.startswith("checkpoint-") or "/" in name or type(count) is not int:
        raise _other(folder, "its index is damaged")
    found: dict[str, Any] = content
    return found


def _read(path: Path) -> dict[str, Weight]:
    try:
        return read_weights(memoryview(path.read_bytes()))
    except OSError as problem:
        raise ArtifactError(
            f"{path} cannot be read", why=str(problem), fix="check that all files are there"
        ) from problem


def _tensor(part: Mapping[str, Weight], name: str, folder: Path) -> torch.Tensor:
    if name not in part:
        raise _other(folder, f"it has no {name}")
    weight = part[name]
    made = torch.from_numpy(weight.carrier.copy())
    return made.view(torch.bfloat16) if weight.dtype == "bf16" else made


def _other(folder: Path, why: str) -> ArtifactError:
    return ArtifactError(
        f"The checkpoint in {folder} is not one of this step.",
        why=why,
        fix="Make the step as it was when it was saved.",
    )
