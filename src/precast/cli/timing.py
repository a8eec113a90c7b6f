"""Times calls that take turns, so that what else the machine does falls on all alike."""

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass

_SLICE_SECONDS = 0.2


@dataclass(frozen=True)
class Timing:
    """How long calls took: the first, and the median of the best slice of the later ones."""

    name: str
    first_seconds: float
    seconds: float
    calls: int

    def as_data(self) -> dict[str, object]:
        return asdict(self)


def take_turns(calls: Mapping[str, Callable[[], object]], seconds: float) -> list[Timing]:
    """Call each once, then slice by slice until the time is over, at least one slice each."""
    first = {name: _timed(call) for name, call in calls.items()}
    slices: dict[str, list[list[float]]] = {name: [] for name in calls}
    deadline = time.perf_counter() + seconds
    while not all(slices.values()) or time.perf_counter() < deadline:
        for name, call in calls.items():
            slices[name].append(_slice(call))
    return [
        Timing(name, first[name], min(map(statistics.median, own)), sum(map(len, own))) for name, own in slices.items()
    ]


def _slice(call: Callable[[], object]) -> list[float]:
    times: list[float] = []
    while sum(times) < _SLICE_SECONDS:
        times.append(_timed(call))
    return times


def _timed(call: Callable[[], object]) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started
