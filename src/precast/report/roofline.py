"""The most that this machine can do: floating-point operations and bytes a second, measured."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache

import torch

_SIDE = 512
_COPIED_BYTES = 64 * 2**20
_RUNS = 20


@dataclass(frozen=True)
class Roofline:
    """Peaks of this machine with so many threads: of a float32 matrix product, and of a copy larger than any cache."""

    threads: int
    flops_a_second: float
    bytes_a_second: float

    def at_least(self, flops_a_second: float) -> Roofline:
        """The same with a peak that is no lower than what was seen elsewhere: a busy machine measures too little."""
        return replace(self, flops_a_second=max(self.flops_a_second, flops_a_second))

    def shortest_seconds(self, flops: float, moved: float) -> float:
        """The least time that so much work can take when all of its data comes from memory."""
        return max(flops / self.flops_a_second, moved / self.bytes_a_second)


def measure_roofline() -> Roofline:
    """The peaks with as many threads as torch uses now; measured once for each number of threads, in half a second."""
    return _measure(torch.get_num_threads())


@cache
def _measure(threads: int) -> Roofline:
    left, right = (torch.rand(_SIDE, _SIDE) for _ in range(2))
    source, target = (torch.zeros(_COPIED_BYTES // 4) for _ in range(2))
    product = _shortest(lambda: torch.mm(left, right))
    copy = _shortest(lambda: target.copy_(source))
    return Roofline(threads, 2 * _SIDE**3 / product, 2 * _COPIED_BYTES / copy)


def _shortest(call: Callable[[], object]) -> float:
    times = []
    for _ in range(_RUNS):
        started = time.perf_counter()
        call()
        times.append(time.perf_counter() - started)
    return min(times)
