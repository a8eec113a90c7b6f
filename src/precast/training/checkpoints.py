"""Checkpoints of a step: one file per process, and an index that is written once all of them are complete.

``index.json`` names the folder of the newest complete checkpoint; older ones are removed after it is written. So there
is a complete one at every moment, whatever is killed. Shards are recombined for a different number of processes.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from operator import methodcaller
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.optim import Optimizer

from precast.artifact.archive import write_file
from precast.artifact.schema import ANYTHING, Count, Json, ListOf, MapOf, Shape, Text, brief, check_shape, damaged
from precast.artifact.weights import Weight, read_weights, weight_pieces
from precast.errors import ArtifactError
from precast.packaging.samples import as_weight
from precast.training.numbers import NUMBERS
from precast.training.placement import Placement, ShardedOptimizer, as_rows

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

INDEX = "index.json"
_SEED = "random.seed"
_SHARD = "shards."
_NAME = Text(r"[^\x00-\x1f]{1,1024}")
_SHAPE: Shape = {
    "folder": Text(r"checkpoint-[0-9]{1,18}"),
    "processes": Count(100_000),
    "sharded": MapOf(_NAME, Count(2**48), 1_000_000),
    "groups": ListOf(MapOf(_NAME, ANYTHING, 1000), 100_000),
}


@dataclass(frozen=True)
class Rank:
    """A process's position among those that train together."""

    number: int = 0
    count: int = 1
    group: ProcessGroup | None = None

    @classmethod
    def of(cls, group: ProcessGroup | None) -> Rank:
        return cls() if group is None else cls(group.rank(), group.size(), group)

    def meet(self) -> None:
        """A barrier for all processes."""
        if self.group is not None:
            torch.distributed.barrier(self.group)


def write_checkpoint(
    folder: Path, tensors: Mapping[str, torch.Tensor], optimizer: Optimizer, placement: Placement, rank: Rank
) -> None:
    """Write this process's part and, in the first process, the index."""
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
        write_file(folder / INDEX, [json.dumps(content, indent=1, default=methodcaller("item")).encode()])
        for other in folder.glob("checkpoint-*"):
            if other.name != name:
                shutil.rmtree(other, ignore_errors=True)
    rank.meet()


def read_checkpoint(
    folder: Path, tensors: Mapping[str, torch.Tensor], optimizer: Optimizer, placement: Placement, rank: Rank
) -> None:
    """Load a checkpoint into these tensors; one that does not fit changes nothing."""
    index = _index(folder)
    sharded = _sharded(tensors, placement)
    if index["sharded"] != sharded:
        raise _other(folder, "it is sharded differently")
    groups = _read_groups(folder, index["groups"], optimizer)
    parts = [
        _read(folder / index["folder"] / _file(number, index["processes"])) for number in range(index["processes"])
    ]
    found = {}
    for name, tensor in tensors.items():
        if name in sharded:
            whole = torch.cat([_tensor(part, name, folder).flatten() for part in parts])[: sharded[name]]
            if len(whole) < sharded[name]:
                raise _other(folder, f"{name} has {len(whole)} elements in it")
            found[name] = as_rows(whole, rank.count)[rank.number]
        else:
            part = parts[rank.number % len(parts)] if name == _SEED else parts[0]
            found[name] = _tensor(part, name, folder)
        if found[name].shape != tensor.shape or found[name].dtype != tensor.dtype:
            raise _other(folder, f"{name} is {found[name].dtype} {list(found[name].shape)} in it")
    with torch.no_grad():
        for name, tensor in tensors.items():
            tensor.copy_(found[name])
    for group, numbers in zip(optimizer.param_groups, groups, strict=True):
        group.update(numbers)


def _sharded(tensors: Mapping[str, torch.Tensor], placement: Placement) -> dict[str, int]:
    """The tensors of which each process has a part, and the number of elements in all parts."""
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
    plain = (bool, *NUMBERS, str, tuple, list, type(None))
    return {name: value for name, value in group.items() if name != "params" and isinstance(value, plain)}


def _read_groups(folder: Path, saved: list[dict[str, Any]], optimizer: Optimizer) -> list[dict[str, Any]]:
    """The optimizer's groups in the index, if their settings match these."""
    groups = optimizer.param_groups
    if len(saved) != len(groups):
        raise _other(folder, f"it has {len(saved)} groups of parameters")
    for number, (numbers, group) in enumerate(zip(saved, groups, strict=True)):
        wrong = [name for name in numbers if name == "params" or not _may_be(numbers[name], group.get(name))]
        if wrong:
            raise _other(folder, f"{wrong[0]!r} of group {number} is {brief(numbers[wrong[0]])} in it")
    return [
        {name: tuple(each) if isinstance(each, list) else each for name, each in numbers.items()} for numbers in saved
    ]


def _may_be(saved: Json, now: object) -> bool:
    """Whether a setting can take a saved value: of the same kind, or unset in one of the two."""
    match saved:
        case list():
            others = now if isinstance(now, list | tuple) else [None] * len(saved)
            fits = now is None or isinstance(now, list) or (isinstance(now, tuple) and len(now) == len(saved))
            return fits and all(map(_may_be, saved, others))
        case bool() | str():
            return now is None or isinstance(now, type(saved))
        case int() | float():
            is_number = isinstance(now, NUMBERS) and not isinstance(now, bool)
            return (now is None or is_number) and (isinstance(saved, float) or abs(saved) < 2**63)
    return saved is None


def _file(number: int, count: int) -> str:
    return f"process-{number:05}-of-{count:05}.safetensors"


def _index(folder: Path) -> dict[str, Any]:
    try:
        content = json.loads((folder / INDEX).read_text())
    except (OSError, ValueError, RecursionError) as problem:
        raise ArtifactError(
            f"{folder} holds no checkpoint", why=str(problem), fix="name a folder that save_checkpoint wrote to"
        ) from problem
    check_shape(content, _SHAPE, str(folder / INDEX))
    if not content["processes"]:
        raise damaged(f"{folder / INDEX} is malformed", "it was written by no process")
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
