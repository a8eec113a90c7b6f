"""What a step would take over many processes, from one that was measured.

A step is computing, with moments at which a collective begins or is waited for. Those moments move apart or together
with nothing but the waiting; what is exchanged takes as long as the network needs for its bytes, one after the other:

=============== ==================================== ==========================
                bytes ``b``, ``n`` processes           rounds of latency
=============== ==================================== ==========================
all_reduce      ``2 (n-1)/n b / bandwidth``            ``2 (n-1)``, as a ring, or
                ``2 b / bandwidth``                    ``2 log2 n``, as a tree
reduce_scatter  ``(n-1)/n b / bandwidth``              ``log2 n``
all_gather      ``(n-1)/n b / bandwidth``              ``log2 n``
=============== ==================================== ==========================

Each process computes what the measured one did, on a batch of its own. With shards, its update is smaller than that.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from precast.training.timeline import Exchange, Timeline


@dataclass(frozen=True)
class Network:
    """What connects the processes: bytes a second out of each, and seconds until the first byte arrives."""

    bandwidth: float
    latency: float = 0.0

    def seconds(self, exchange: Exchange, processes: int) -> float:
        """How long a collective takes on its own, by the faster of the usual algorithms."""
        if processes == 1:
            return 0.0
        share, rounds = (processes - 1) / processes, math.ceil(math.log2(processes))
        transfer = exchange.bytes / self.bandwidth
        if exchange.operator != "all_reduce":
            return share * transfer + rounds * self.latency
        ring = 2 * share * transfer + 2 * (processes - 1) * self.latency
        tree = 2 * transfer + 2 * rounds * self.latency
        return min(ring, tree)


@dataclass(frozen=True)
class PlannedStep:
    """A step over so many processes: its seconds, and those of them in which it only waits."""

    processes: int
    seconds: float
    waiting_seconds: float

    @property
    def efficiency(self) -> float:
        """The share of the time in which processes compute."""
        return 1 - self.waiting_seconds / self.seconds if self.seconds else 1.0

    @property
    def speedup(self) -> float:
        """How many times as many examples a second as one process."""
        return self.processes * self.efficiency


def plan(timeline: Timeline, network: Network, counts: Sequence[int]) -> list[PlannedStep]:
    """The step over each of these numbers of processes."""
    return [_planned(timeline, network, count) for count in counts]


def powers_of_two(most: int) -> list[int]:
    """1, 2, 4, … and ``most`` itself."""
    return sorted({2**power for power in range(most.bit_length()) if 2**power <= most} | {most})


def _planned(timeline: Timeline, network: Network, processes: int) -> PlannedStep:
    moments = [(each.started, number, True) for number, each in enumerate(timeline.exchanges)]
    moments += [(each.waited_from, number, False) for number, each in enumerate(timeline.exchanges)]
    measured = now = waited = free = 0.0
    finished: dict[int, float] = {}
    for moment, number, begins in sorted(moments):
        exchange = timeline.exchanges[number]
        now += max(0.0, moment - measured)
        measured = max(measured, moment)
        if begins:
            free = finished[number] = max(now, free) + network.seconds(exchange, processes)
            continue
        # What the measured step waited for is replaced by what this one waits for.
        measured = max(measured, exchange.waited_until)
        waiting = max(0.0, finished[number] - now)
        now, waited = now + waiting, waited + waiting
    return PlannedStep(processes, now + max(0.0, timeline.seconds - measured), waited)
