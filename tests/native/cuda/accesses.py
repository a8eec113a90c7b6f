"""What a kernel in the interpreter may do to memory: touch its own buffers, and nothing that depends on an order.

Programs of a launch run in no order, and neither do threads of one program until they wait for each other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from precast.artifact.dtypes import DTYPES
from precast.runtime.gpu.execute import ProgramCall

Array = np.ndarray[Any, Any]


class WrongAccessError(AssertionError):
    """A kernel read or wrote what it must not."""


class Extent(int):
    """The address of a buffer that knows how many bytes the buffer has."""

    size: int


@dataclass(frozen=True)
class _Access:
    kind: str
    program: int
    epoch: int
    addresses: Array
    lanes: Array
    shape: tuple[int, ...]


class Watch:
    """The accesses of the launch that is being interpreted."""

    def __init__(self) -> None:
        self.starts: Array | None = None
        self.ends = np.empty(0, np.uint64)
        self.seen: list[_Access] = []
        self.epoch = 0

    @contextmanager
    def launch(self, addresses: Sequence[int]) -> Iterator[None]:
        """Watch a launch whose buffers have known lengths."""
        if not addresses or not all(isinstance(each, Extent) for each in addresses):
            yield
            return
        spans = sorted({(int(each), int(each) + each.size) for each in addresses if isinstance(each, Extent)})
        self.starts, self.ends = (np.array(each, np.uint64) for each in zip(*spans, strict=True))
        self.ends = np.maximum.accumulate(self.ends)
        self.seen, self.epoch = [], 0
        try:
            yield
            self.judge()
        finally:
            self.starts, self.seen = None, []

    def wait(self) -> None:
        self.epoch += 1

    def note(self, kind: str, pointers: Array, mask: Array, size: int, program: int) -> None:
        if self.starts is None:
            return
        lanes = np.flatnonzero(np.broadcast_to(mask, pointers.shape))
        addresses = np.ascontiguousarray(pointers).reshape(-1)[lanes]
        if not len(addresses):
            return
        homes = np.searchsorted(self.starts, addresses, "right")
        inside = (homes > 0) & (addresses + np.uint64(size) <= self.ends[np.maximum(homes, 1) - 1])
        if not inside.all():
            distance = int(addresses[~inside][0]) - int(self.starts[max(int(homes[~inside][0]), 1) - 1])
            raise WrongAccessError(f"program {program} has a {kind} outside: {distance} bytes from the nearest buffer")
        self.seen.append(_Access(kind, program, self.epoch, addresses, lanes, pointers.shape))

    def judge(self) -> None:
        """Raise if the result of the launch depends on who is first."""
        writes = [each for each in self.seen if each.kind != "read"]
        written = np.unique(np.concatenate([each.addresses for each in writes])) if writes else np.empty(0, np.uint64)
        owner = np.full(len(written), -1, np.int64)
        adds, stores = np.zeros(len(written), bool), np.zeros(len(written), bool)
        for each in writes:
            places = np.searchsorted(written, each.addresses)
            if each.kind == "add":
                adds[places] = True
            else:
                stores[places] = True
                if ((owner[places] >= 0) & (owner[places] != each.program)).any():
                    raise WrongAccessError("two programs write the same element")
                owner[places] = each.program
        if (adds & stores).any():
            raise WrongAccessError("an element is both added to and written")
        for each in self.seen:
            if each.kind == "read" and len(written):
                places = np.minimum(np.searchsorted(written, each.addresses), len(written) - 1)
                found = written[places] == each.addresses
                if (found & (owner[places] != each.program)).any():
                    raise WrongAccessError("a program reads what another one writes")
        self._judge_threads()

    def _judge_threads(self) -> None:
        groups: dict[tuple[int, int], list[_Access]] = {}
        for each in self.seen:
            groups.setdefault((each.program, each.epoch), []).append(each)
        for group in groups.values():
            for number, second in enumerate(group):
                for first in group[:number]:
                    if first.kind == second.kind == "read" or "add" in (first.kind, second.kind):
                        continue
                    both, ours, theirs = np.intersect1d(first.addresses, second.addresses, return_indices=True)
                    if not len(both):
                        continue
                    same_thread = first.shape == second.shape and (first.lanes[ours] == second.lanes[theirs]).all()
                    if "read" in (first.kind, second.kind) or not same_thread:
                        raise WrongAccessError(f"a {first.kind} and a {second.kind} of an element without a barrier")


watch = Watch()
_address = ProgramCall.address


def _extent(self: ProgramCall[Any], place: int) -> Extent:
    layout = self.bound.layouts[place]
    made = Extent(_address(self, place))
    made.size = layout.length * DTYPES[layout.dtype].item_size
    return made


ProgramCall.address = _extent  # type: ignore[method-assign]
