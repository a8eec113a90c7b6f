"""Where parameters and gradients are: in one process, replicated in many, or sharded.

A placement defines what the loss is computed from, how gradients become those of the optimizer's parameters, and what
happens after the update. Collectives are operators of the program; torch.distributed runs them.

========== ========================== =============================== ====================
           the loss reads             the optimizer updates            exchanged
========== ========================== =============================== ====================
none       whole parameters           whole parameters                 all_reduce(gradients)
optimizer  whole parameters           shards, with shards of its state reduce_scatter, all_gather(shards)
parameters gathered shards, twice     shards, with shards of its state all_gather, all_gather, reduce_scatter
========== ========================== =============================== ====================
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

Gradients = Sequence[torch.Tensor | None]

_exchange = torch.ops._c10d_functional


class Placement:
    """A single process: parameters are whole, and gradients are used as they are."""

    def whole(self, trained: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        """The parameters that the loss is computed from, for the optimizer's parameters."""
        return trained

    def replaced(self, whole: Sequence[torch.Tensor]) -> Mapping[str, torch.Tensor]:
        """Parameters of the model that are replaced during the forward, by name."""
        return {}

    def saving(self, trained: Sequence[torch.Tensor], whole: Sequence[torch.Tensor]) -> AbstractContextManager[Any]:
        """A context for the forward that decides how parameters are saved for the backward."""
        return nullcontext()

    def reduce(self, loss: torch.Tensor, gradients: Gradients) -> tuple[torch.Tensor, Gradients]:
        """The mean loss of all processes, and the gradients of the optimizer's parameters."""
        return loss, gradients

    def clip(self, trained: Sequence[torch.Tensor], largest: float) -> None:
        """Clip gradients by their total norm."""
        torch.nn.utils.clip_grad_norm_(trained, largest)

    def all_finite(self, is_finite: torch.Tensor) -> torch.Tensor:
        """Whether it is true in all processes."""
        return is_finite

    def publish(self, trained: Sequence[torch.Tensor]) -> None:
        """After the update: make it visible to the model."""


ONE_PROCESS = Placement()


@dataclass(frozen=True)
class Group:
    """A process group in the form that programs use: independent of the rank."""

    name: str
    size: int
    bucket_bytes: int

    @classmethod
    def of(cls, group: ProcessGroup, bucket_bytes: int) -> Group:
        return cls(group.group_name, group.size(), bucket_bytes)

    def sum(self, tensor: torch.Tensor) -> torch.Tensor:
        started = _exchange.all_reduce(tensor, "sum", self.name)
        return _finished(started)

    def scattered_sum(self, tensor: torch.Tensor) -> torch.Tensor:
        started = _exchange.reduce_scatter_tensor(tensor, "sum", self.size, self.name)
        return _finished(started)

    def gathered(self, tensor: torch.Tensor) -> torch.Tensor:
        started = _exchange.all_gather_into_tensor(tensor, self.size, self.name)
        return _finished(started)

    def buckets(self, tensors: Sequence[torch.Tensor | None]) -> Iterator[list[int]]:
        """Numbers of tensors that are exchanged together: of one type, last ones first, in the order of gradients."""
        found: dict[torch.dtype, list[int]] = {}
        for number in reversed(range(len(tensors))):
            tensor = tensors[number]
            if tensor is None:
                continue
            bucket = found.setdefault(tensor.dtype, [])
            if bucket and sum(_bytes(tensors[each]) for each in [*bucket, number]) > self.bucket_bytes:
                yield bucket
                bucket = found[tensor.dtype] = []
            bucket.append(number)
        yield from (bucket for bucket in found.values() if bucket)


def _finished(started: Any) -> torch.Tensor:
    finished: torch.Tensor = _exchange.wait_tensor(started)
    return finished


def _bytes(tensor: torch.Tensor | None) -> int:
    return 0 if tensor is None else tensor.numel() * tensor.element_size()


@dataclass(frozen=True)
class DataParallel(Placement):
    """All processes have all parameters, and a part of the batch each."""

    group: Group

    def reduce(self, loss: torch.Tensor, gradients: Gradients) -> tuple[torch.Tensor, Gradients]:
        found = list(gradients)
        for bucket in self.group.buckets(gradients):
            tensors = [_present(gradients[number]) for number in bucket]
            total = self.group.sum(torch.cat([tensor.flatten() for tensor in tensors])) / self.group.size
            parts = total.split([tensor.numel() for tensor in tensors])
            for number, tensor, part in zip(bucket, tensors, parts, strict=True):
                found[number] = part.view(tensor.shape)
        return self.group.sum(loss.detach()) / self.group.size, found


@dataclass(frozen=True)
class ShardedOptimizer(Placement):
    """All processes have all parameters, and each updates its shard of every one.

    ``owners`` are the model's parameters, in the order of the optimizer's, which are their shards.
    """

    group: Group
    owners: tuple[torch.nn.Parameter, ...]

    def whole(self, trained: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        return self.owners

    def reduce(self, loss: torch.Tensor, gradients: Gradients) -> tuple[torch.Tensor, Gradients]:
        found: list[torch.Tensor | None] = [None] * len(gradients)
        for bucket in self.group.buckets(gradients):
            rows = [as_rows(_present(gradients[number]), self.group.size) for number in bucket]
            total = self.group.scattered_sum(torch.cat(rows, 1).flatten()) / self.group.size
            for number, part in zip(bucket, total.split([each.shape[1] for each in rows]), strict=True):
                found[number] = part
        return self.group.sum(loss.detach()) / self.group.size, found

    def clip(self, trained: Sequence[torch.Tensor], largest: float) -> None:
        with_gradient = [parameter for parameter in trained if parameter.grad is not None]
        norms = [torch.linalg.vector_norm(_present(each.grad)) for each in with_gradient]
        norm = self.group.sum(torch.stack(norms).square().sum()).sqrt()
        scale = (largest / (norm + 1e-6)).clamp(max=1.0)
        for parameter in with_gradient:
            _present(parameter.grad).mul_(scale)

    def all_finite(self, is_finite: torch.Tensor) -> torch.Tensor:
        return self.group.sum(is_finite.logical_not().float()) == 0

    def publish(self, trained: Sequence[torch.Tensor]) -> None:
        for owner, tensor in zip(self.owners, self._gathered(trained, self.owners), strict=True):
            owner.copy_(tensor)

    def _gathered(self, shards: Sequence[torch.Tensor], like: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The whole tensors of shards."""
        found: dict[int, torch.Tensor] = {}
        for bucket in reversed(list(self.group.buckets(like))):
            found |= self._gathered_bucket(shards, bucket)
        return [found[number] for number in range(len(shards))]

    def _gathered_bucket(self, shards: Sequence[torch.Tensor], bucket: Sequence[int]) -> dict[int, torch.Tensor]:
        chosen = [shards[number].detach() for number in bucket]
        rows = self.group.gathered(torch.cat(chosen)).view(self.group.size, -1)
        parts = rows.split([each.numel() for each in chosen], 1)
        return {number: self._shaped(part, number) for number, part in zip(bucket, parts, strict=True)}

    def _shaped(self, rows: torch.Tensor, number: int) -> torch.Tensor:
        shape = self.shapes[number]
        return rows.reshape(-1)[: shape.numel()].view(shape)

    @property
    def shapes(self) -> Sequence[torch.Size]:
        return [owner.shape for owner in self.owners]


@dataclass(frozen=True)
class ShardedParameters(ShardedOptimizer):
    """Each process has its shard of every parameter; whole ones exist while a bucket of layers runs.

    ``names`` are those of the parameters in the model, which are empty themselves.
    """

    names: tuple[str, ...]
    whole_shapes: tuple[torch.Size, ...]

    @property
    def shapes(self) -> Sequence[torch.Size]:
        return self.whole_shapes

    def whole(self, trained: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        return [tensor.requires_grad_() for tensor in self._gathered(trained, self._like(trained))]

    def replaced(self, whole: Sequence[torch.Tensor]) -> Mapping[str, torch.Tensor]:
        return dict(zip(self.names, whole, strict=True))

    def publish(self, trained: Sequence[torch.Tensor]) -> None:
        """Do nothing: the next step gathers the parameters."""

    def _like(self, trained: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Stand-ins as large as the whole parameters, whose buckets gradients share."""
        return [
            torch.empty((), dtype=each.dtype, device=each.device).expand(shape)
            for each, shape in zip(trained, self.shapes, strict=True)
        ]

    def saving(self, trained: Sequence[torch.Tensor], whole: Sequence[torch.Tensor]) -> AbstractContextManager[Any]:
        """While active, the backward saves no whole parameter, but gathers them again when it needs them."""
        shards = [each.detach() for each in trained]
        buckets = {number: bucket for bucket in self.group.buckets(self._like(trained)) for number in bucket}
        again: dict[int, torch.Tensor] = {}

        def keep(tensor: torch.Tensor) -> Any:
            number = next((i for i, parameter in enumerate(whole) if _is_part(tensor, parameter)), None)
            if number is None:
                return tensor
            return number, tensor.shape, tensor.stride(), tensor.storage_offset() - whole[number].storage_offset()

        def bring(kept: Any) -> torch.Tensor:
            if isinstance(kept, torch.Tensor):
                return kept
            number, shape, stride, offset = kept
            if number not in again:
                again.update(self._gathered_bucket(shards, buckets[number]))
            return _seen_as(again[number], shape, stride, offset)

        return torch.autograd.graph.saved_tensors_hooks(keep, bring)


def _is_part(tensor: torch.Tensor, whole: torch.Tensor) -> bool:
    """Whether a tensor is a view of another, dense one."""
    if tensor.untyped_storage()._cdata != whole.untyped_storage()._cdata:
        return False
    return 0 <= tensor.storage_offset() - whole.storage_offset() < max(whole.numel(), 1)


def _seen_as(tensor: torch.Tensor, shape: Sequence[int], stride: Sequence[int], offset: int) -> torch.Tensor:
    if tuple(tensor.shape) == tuple(shape) and tensor.stride() == tuple(stride):
        return tensor
    if tensor.dim() == 2 and tuple(tensor.t().shape) == tuple(shape) and tensor.t().stride() == tuple(stride):
        return tensor.t()
    return tensor.as_strided(tuple(shape), tuple(stride), tensor.storage_offset() + offset)


def _present(tensor: torch.Tensor | None) -> torch.Tensor:
    assert tensor is not None, "buckets hold only tensors"
    return tensor


def as_rows(tensor: torch.Tensor, count: int) -> torch.Tensor:
    """A tensor's elements as equal rows, padded with zeros: one row per process."""
    flat = tensor.reshape(-1)
    missing = -flat.numel() % count
    return torch.nn.functional.pad(flat, (0, missing)).view(count, -1)
