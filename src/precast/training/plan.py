"""Predicts a step over many processes from a measured one.

A step computes, with moments at which a collective starts or is waited for. More processes only change the waiting
between these; exchanges take as long as the network needs for their bytes, one after the other:

=============== ==================================== ==========================
                bytes ``b``, ``n`` processes           latencies
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
    """The network between the processes: bytes per second out of each, and the latency in seconds."""

    bandwidth: float
    latency: float = 0.0

    def seconds(self, exchange: Exchange, processes: int) -> float:
        """The duration of a collective on its own, with the faster of the usual algorithms."""
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
    """A step over some number of processes: its duration, and the part spent waiting, in seconds."""

    processes: int
    seconds: float
    waiting_seconds: float

    @property
    def efficiency(self) -> float:
        """The share of the time in which processes compute."""
        return 1 - self.waiting_seconds / self.seconds if self.seconds else 1.0

    @property
    def speedup(self) -> float:
        """The throughput, in examples per second, relative to one process."""
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
        # The measured waiting is replaced by the predicted one.
        measured = max(measured, exchange.waited_until)
        waiting = max(0.0, finished[number] - now)
        now, waited = now + waiting, waited + waiting
    return PlannedStep(processes, now + max(0.0, timeline.seconds - measured), waited)
