"""Records in-place collectives of ``torch.distributed`` in their functional form, by group name.

Before: ``dist.all_reduce(y, group=group)``
After:  ``r = _c10d_functional.all_reduce(y, 'sum', '0'); w = wait_tensor(r); y.copy_(w)``
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import is_fake
from torch.utils import _pytree as pytree

from precast.errors import CaptureError

Collective = Callable[..., None]
"""Takes the group, then the arguments of the group's own method."""


class FinishedWork:
    """The work object of a recorded collective, which is always complete."""

    def wait(self, timeout: Any = None) -> bool:
        return True

    def is_completed(self) -> bool:
        return True

    def is_success(self) -> bool:
        return True


@contextmanager
def functional_collectives() -> Iterator[None]:
    """While active, collectives on fake tensors, called on this thread, are recorded in their functional form."""
    if not dist.is_available() or not dist.is_initialized():
        yield
        return
    thread = threading.get_ident()
    with ExitStack() as stack:
        for name, collective in (_COLLECTIVES | dict.fromkeys(_UNKNOWN, None)).items():
            if hasattr(dist.ProcessGroup, name):
                stack.enter_context(patch.object(dist.ProcessGroup, name, _recorded(name, collective, thread)))
        yield


def _recorded(name: str, collective: Collective | None, thread: int) -> Callable[..., Any]:
    original: Callable[..., Any] = getattr(dist.ProcessGroup, name)

    def call(group: dist.ProcessGroup, *args: Any, **kwargs: Any) -> Any:
        is_traced = any(map(is_fake, pytree.tree_leaves(args))) or name == "barrier"
        if threading.get_ident() != thread or not is_traced:
            return original(group, *args, **kwargs)
        if collective is None:
            raise CaptureError(
                f"The program calls the collective {name}.",
                why="it has no functional form that could be recorded",
                fix="Use all_reduce, all_gather, reduce_scatter, all_to_all or broadcast, or call it outside.",
            )
        # In eager, autograd does not see a collective's writes.
        with torch.no_grad():
            collective(group, *args, **kwargs)
        return FinishedWork()

    return call


def _all_reduce(group: Any, tensors: Sequence[torch.Tensor], opts: Any) -> None:
    for tensor in tensors:
        tensor.copy_(_functional().all_reduce(tensor, _operation(opts), group))


def _all_gather_single(group: Any, output: torch.Tensor, source: torch.Tensor, opts: Any = None) -> None:
    output.copy_(_gathered(source, group).view(output.shape))


def _all_gather(group: Any, outputs: Sequence[Sequence[torch.Tensor]], sources: Any, opts: Any = None) -> None:
    for parts, source in zip(outputs, sources, strict=True):
        for part, gathered in zip(parts, _gathered(source, group).unbind(), strict=True):
            part.copy_(gathered)


def _gathered(source: torch.Tensor, group: Any) -> torch.Tensor:
    """One row for each process."""
    gathered: torch.Tensor = _functional().all_gather_tensor(source.contiguous()[None], 0, group)
    return gathered


def _reduce_scatter_single(group: Any, output: torch.Tensor, source: torch.Tensor, opts: Any) -> None:
    part = _functional().reduce_scatter_tensor(source.reshape(-1), _operation(opts), 0, group)
    output.copy_(part.view(output.shape))


def _reduce_scatter(group: Any, outputs: Sequence[torch.Tensor], sources: Any, opts: Any) -> None:
    for output, parts in zip(outputs, sources, strict=True):
        _reduce_scatter_single(group, output, torch.cat([part.reshape(-1) for part in parts]), opts)


def _all_to_all_single(
    group: Any,
    output: torch.Tensor,
    source: torch.Tensor,
    received: Sequence[int],
    sent: Sequence[int],
    *_: Any,
    **__: Any,
) -> None:
    splits = [list(sizes) or None for sizes in (received, sent)]
    output.copy_(_functional().all_to_all_single(source.contiguous(), *splits, group))


def _all_to_all(group: Any, outputs: Sequence[torch.Tensor], sources: Sequence[torch.Tensor], opts: Any = None) -> None:
    received, sent = ([each.numel() for each in tensors] for tensors in (outputs, sources))
    flat = _functional().all_to_all_single(torch.cat([each.reshape(-1) for each in sources]), received, sent, group)
    for output, part in zip(outputs, flat.split(received), strict=True):
        output.copy_(part.view(output.shape))


def _broadcast(group: Any, tensors: Sequence[torch.Tensor], opts: Any) -> None:
    for tensor in tensors:
        tensor.copy_(_functional().broadcast(tensor, opts.rootRank, group))


def _nothing(group: Any, *_: Any, **__: Any) -> None:
    """A barrier, which is not needed: the collectives of a graph are ordered."""


def _operation(opts: Any) -> str:
    names = ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR")
    return next(name.lower() for name in names if opts.reduceOp == getattr(dist.ReduceOp, name))


def _functional() -> Any:
    # Imported here: it takes long to load, and few programs are distributed.
    from torch.distributed import _functional_collectives

    return _functional_collectives


_COLLECTIVES: dict[str, Collective | None] = {
    "allreduce": _all_reduce,
    "allreduce_coalesced": _all_reduce,
    "all_gather_single": _all_gather_single,
    "_allgather_base": _all_gather_single,
    "allgather": _all_gather,
    "reduce_scatter_single": _reduce_scatter_single,
    "_reduce_scatter_base": _reduce_scatter_single,
    "reduce_scatter": _reduce_scatter,
    "all_to_all_single": _all_to_all_single,
    "alltoall_base": _all_to_all_single,
    "alltoall": _all_to_all,
    "broadcast": _broadcast,
    "barrier": _nothing,
}
_UNKNOWN = ("reduce", "gather", "scatter", "send", "recv", "recv_anysource", "allgather_coalesced")
