"""Training by many processes: how parameters are placed, and which process is missing when an exchange fails."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch.optim import Optimizer

from precast.errors import InputValueError, TrainingError
from precast.training.initial_state import is_elementwise
from precast.training.placement import (
    ONE_PROCESS,
    DataParallel,
    Group,
    Placement,
    ShardedOptimizer,
    ShardedParameters,
    as_rows,
)
from precast.training.watch import watch_over

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

SHARDS = ("none", "optimizer", "parameters")


def placement_of(
    model: torch.nn.Module, optimizer: Optimizer, group: ProcessGroup | None, shard: str, bucket_bytes: int
) -> Placement:
    """The placement of a step; with sharding, the optimizer's parameters are replaced by shards."""
    if shard not in SHARDS or (group is None and shard != "none"):
        raise InputValueError(
            f"shard cannot be {shard!r}.",
            why=f"it is one of {', '.join(SHARDS)}, for a process group",
            fix="Pass process_group=torch.distributed.group.WORLD with it.",
        )
    if group is None:
        return ONE_PROCESS
    described = Group.of(group, bucket_bytes)
    if group.size() > 1:
        watch_over(group)
    _send_from_first(model, group)
    if shard == "none":
        return DataParallel(described)
    owners = _cut_parameters(optimizer, group)
    if shard == "optimizer":
        return ShardedOptimizer(described, owners)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    shapes = tuple(owner.shape for owner in owners)
    for owner in owners:
        owner.data = owner.data.new_empty(0)
    return ShardedParameters(described, owners, tuple(names[id(owner)] for owner in owners), shapes)


def _send_from_first(model: torch.nn.Module, group: ProcessGroup) -> None:
    """Broadcast the parameters and buffers of the group's first process to all."""
    first = torch.distributed.get_global_rank(group, 0)
    with torch.no_grad():
        for tensor in (*model.parameters(), *model.buffers()):
            torch.distributed.broadcast(tensor, first, group=group)


def _cut_parameters(optimizer: Optimizer, group: ProcessGroup) -> tuple[torch.nn.Parameter, ...]:
    """Replace the optimizer's parameters by this process's shards; returns the parameters."""
    owners = [parameter for each in optimizer.param_groups for parameter in each["params"]]
    refusal = None
    if any(optimizer.state.get(owner) for owner in owners):
        refusal = (
            "has state already",
            "its state is made for whole parameters",
            "Make the step before the first update.",
        )
    elif not all(isinstance(owner, torch.nn.Parameter) and owner.requires_grad for owner in owners):
        refusal = "holds parameters that are not trained", "they have no shards", "Pass it trained parameters only."
    elif not is_elementwise(optimizer):
        refusal = (
            "looks at whole parameters",
            "a shard is some elements of one",
            "Choose shard='none', or AdamW or SGD.",
        )
    if refusal is not None:
        what, why, fix = refusal
        raise InputValueError(f"{type(optimizer).__name__} {what}, and cannot be sharded.", why=why, fix=fix)
    for each in optimizer.param_groups:
        rows = [as_rows(parameter.detach(), group.size())[group.rank()] for parameter in each["params"]]
        each["params"] = [torch.nn.Parameter(row.clone()) for row in rows]
    return tuple(owners)


@contextmanager
def reporting_missing(group: ProcessGroup | None) -> Iterator[None]:
    """If an exchange fails, report which processes have ended."""
    if group is None or group.size() == 1:
        yield
        return
    try:
        yield
    except RuntimeError as problem:
        missing = watch_over(group).ended()
        if not missing:
            raise
        raise TrainingError(
            f"Process {', '.join(map(str, missing))} of {group.size()} no longer responds.",
            why=f"it has ended, or cannot be reached: {str(problem).splitlines()[0]}",
            fix="Start all processes again, from the last checkpoint.",
        ) from problem
