"""What a run found, as plain data and as JSON."""

import dataclasses
import json
import statistics
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

Number = TypeVar("Number", int, float)


@dataclass(frozen=True)
class Measurement:
    """One contender at one workload.

    ``seconds`` is the median call of its best slice; of several runs, the median of that.
    """

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
    runs: list[float] = field(default_factory=list)
    """Where several runs were merged: the time of each."""
    warm_result_seconds: float | None = None
    """To the first result of a further run: a new process that finds the caches, or the exported file, of the first."""

    @property
    def seconds(self) -> float | None:
        if self.runs:
            return statistics.median(self.runs)
        return min(self.slices, default=None)

    @property
    def spread(self) -> float:
        """By how much runs differ, as a part of their median."""
        return (max(self.runs) - min(self.runs)) / statistics.median(self.runs) if self.runs else 0.0


@dataclass(frozen=True)
class Outcome:
    """All contenders at one workload."""

    architecture: str
    setting: str
    measurements: list[Measurement]

    @property
    def name(self) -> tuple[str, str]:
        return self.architecture, self.setting

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


def merge(runs: list[Run]) -> Run:
    """Several runs of the same as one: the median of their times, the worst of everything else."""
    assert len({run.threads for run in runs}) == 1, "runs with different numbers of threads are not the same"
    names = dict.fromkeys((each.architecture, each.setting) for run in runs for each in run.outcomes)
    found = {name: [each.measurements for run in runs for each in run.outcomes if each.name == name] for name in names}
    outcomes = [Outcome(*name, merge_measurements(measurements)) for name, measurements in found.items()]
    return replace(runs[-1], outcomes=outcomes, left_out=[])


def merge_measurements(runs: list[list[Measurement]]) -> list[Measurement]:
    """What several runs found at one workload as one for each contender."""
    contenders = dict.fromkeys(each.contender for run in runs for each in run)
    return [_merged_contender([each for run in runs for each in run if each.contender == name]) for name in contenders]


def _merged_contender(measurements: list[Measurement]) -> Measurement:
    good = [each for each in measurements if not each.failure]
    if not good:
        return measurements[-1]
    return Measurement(
        good[0].contender,
        slices=[seconds for each in good for seconds in each.slices],
        first_result_seconds=_worst(each.first_result_seconds for each in good),
        peak_bytes=_worst(each.peak_bytes for each in good),
        error=_worst(each.error for each in good),
        runs=[seconds for each in good for seconds in each.runs or [each.seconds] if seconds is not None],
        warm_result_seconds=_worst(each.warm_result_seconds for each in good),
    )


def _worst(values: Iterable[Number | None]) -> Number | None:
    return max((value for value in values if value is not None), default=None)


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
