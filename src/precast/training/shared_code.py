"""One process compiles, the others load the code: from a shared cache, or sent by the first process.

Before: every process compiles the same step
After:  the first compiles, and records which cache entries it made or read; processes that lack them receive them
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

from precast.cache.store import EntryName, Store
from precast.training.watch import watch_over

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

_PAUSE = 0.05


@contextmanager
def compiled_once(group: ProcessGroup | None, store: Store, times: int) -> Iterator[None]:
    """Let only the first process compile inside; ``times`` counts the uses, equal in all processes."""
    if group is None or group.size() == 1:
        yield
        return
    done = f"precast/compiled/{group.group_name}/{times}"
    if group.rank() != 0:
        # A barrier would time out after the group's time-out, which is meant for exchanges.
        _wait_for(done, group)
        _send_missing((), store, group)
        yield
        return
    used: set[EntryName] = set()
    try:
        with store.noted(used):
            yield
    finally:
        torch.distributed.distributed_c10d._get_default_store().set(done, "1")
        _send_missing(sorted(used), store, group)


def _wait_for(key: str, group: ProcessGroup) -> None:
    keys = torch.distributed.distributed_c10d._get_default_store()
    lives = watch_over(group).follow(0)
    while not keys.check([key]):
        time.sleep(_PAUSE)
        if not lives():
            raise RuntimeError("the process that compiles does not respond")


def _send_missing(names: Sequence[EntryName], store: Store, group: ProcessGroup) -> None:
    """Send entries of the first process to those that lack them; all processes call it."""
    is_first = group.rank() == 0
    names = [EntryName(*each) for each in json.loads(_sent(json.dumps(names).encode() if is_first else b"", group))]
    lacks = torch.tensor([not is_first and store.get(each.kind, each.key) is None for each in names], dtype=torch.int64)
    if names:
        torch.distributed.all_reduce(lacks, torch.distributed.ReduceOp.SUM, group=group)
    for name, count in zip(names, lacks.tolist(), strict=True):
        if count:
            data = _sent((store.get(name.kind, name.key) or b"") if is_first else b"", group)
            if data and not is_first:
                store.put(name.kind, name.key, data, suffix=name.suffix)


def _sent(data: bytes, group: ProcessGroup) -> bytes:
    """Broadcast the bytes that the first process passes."""
    first = torch.distributed.get_global_rank(group, 0)
    size = torch.tensor(len(data))
    torch.distributed.broadcast(size, first, group=group)
    buffer = torch.frombuffer(bytearray(data or bytes(int(size)) or b"\0"), dtype=torch.uint8)
    torch.distributed.broadcast(buffer, first, group=group)
    return bytes(buffer.numpy()[: int(size)])
