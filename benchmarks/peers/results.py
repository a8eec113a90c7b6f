"""What a run found, as plain data and as JSON."""

import dataclasses
import json
import statistics
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Measurement:
    """One contender at one workload. ``seconds`` is the median call of its best slice."""

    contender: str
    slices: list[float] = field(default_factory=list)
    """The median call of each slice, in seconds."""
    first_result_seconds: float | None = None
    """From the finished model to the first result, with nothing cached; an export that it needs is counted."""
    peak_bytes: int | None = None
    """The most physical memory of its process while it was called again and again."""
    error: float | None = None
    """Of its logits, or loss and gradients, to eager in float64, relative."""
    failure: str | None = None

    @property
    def seconds(self) -> float | None:
        return min(self.slices, default=None)

    @property
    def spread(self) -> float:
        """The slowest slice over the best, for readers who want to know how quiet the machine was."""
        return max(self.slices) / min(self.slices) if self.slices else 1.0


@dataclass(frozen=True)
class Outcome:
    """All contenders at one workload."""

    architecture: str
    setting: str
    measurements: list[Measurement]

    def of(self, contender: str) -> Measurement | None:
        return next((each for each in self.measurements if each.contender == contender), None)

    def seconds(self, contender: str) -> float | None:
        measurement = self.of(contender)
        return None if measurement is None else measurement.seconds


@dataclass(frozen=True)
class Run:
    """Everything that one command measured, and where."""

    date: str
    machine: dict[str, str]
    threads: int
    clock: str
    outcomes: list[Outcome]
    left_out: list[str] = field(default_factory=list)
    """Workloads for which no time was left."""


def geometric_mean(ratios: list[float]) -> float | None:
    """The mean of ratios; None of none."""
    return statistics.geometric_mean(ratios) if ratios else None


def save(run: Run, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(dataclasses.asdict(run), indent=1) + "\n")


def load(path: Path) -> Run:
    data = json.loads(path.read_text())
    outcomes = [
        Outcome(each["architecture"], each["setting"], [Measurement(**values) for values in each["measurements"]])
        for each in data.pop("outcomes")
    ]
    return Run(**data, outcomes=outcomes)
