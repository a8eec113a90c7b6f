"""Runs a model's samples here and compares them with their expected results."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from precast.artifact.dtypes import DTYPES
from precast.artifact.manifest import PackedEntry, Sample
from precast.artifact.package import SAMPLES, Package
from precast.artifact.schema import damaged
from precast.artifact.weights import Weight
from precast.errors import ArtifactError
from precast.runtime.tensors import Array


class SampleCheck(NamedTuple):
    """The check of one output of one sample: its deviation from the expected result, and the tolerance."""

    entry: str
    sample: int
    output: str
    largest_error: float
    tolerance: float

    @property
    def passed(self) -> bool:
        return self.largest_error <= self.tolerance


class SampleRunnable(Protocol):
    """An entry that takes and returns tensors as their bits."""

    def run_bits(self, tensors: Sequence[Weight]) -> tuple[Weight, ...]: ...


def verify_package(package: Package, fresh_entries: Callable[[], Sequence[SampleRunnable]]) -> tuple[SampleCheck, ...]:
    """Check all hashes, then every sample, each on the state that the model was packaged with."""
    package.verify()
    stored = package.tensors(SAMPLES)
    checks: list[SampleCheck] = []
    for number, entry in enumerate(package.manifest.entries):
        for position, sample in enumerate(entry.samples):
            runnable = fresh_entries()[number]
            checks += _check(entry, position, sample, stored, runnable)
    failed = [check for check in checks if not check.passed]
    if failed:
        lines = [
            f"{each.entry}, sample {each.sample}, {each.output}: off by {each.largest_error:.3g}, "
            f"where {each.tolerance:.3g} is allowed"
            for each in failed
        ]
        raise ArtifactError(
            "the model computes other numbers here than where it was packaged: " + "; ".join(lines),
            why="its code does not suit this machine, or the file was changed by someone who also changed its hashes",
            fix="package the model again, for this machine or for an older target; report it if that does not help",
        )
    return tuple(checks)


def _check(
    entry: PackedEntry, position: int, sample: Sample, stored: Mapping[str, Weight], runnable: SampleRunnable
) -> list[SampleCheck]:
    inputs = [_input(each, stored) for each in sample.inputs]
    if len(inputs) != len(entry.interface.inputs) or len(sample.outputs) != len(entry.interface.outputs):
        raise damaged(f"sample {position} of {entry.name!r} does not fit the entry", "it has other inputs or outputs")
    try:
        results = runnable.run_bits(inputs)
    except ArtifactError:
        raise
    except (ValueError, TypeError, LookupError, RuntimeError, MemoryError) as problem:
        raise damaged(f"sample {position} of {entry.name!r} cannot be run", str(problem)) from problem
    checks = []
    for described, expected, result in zip(entry.interface.outputs, sample.outputs, results, strict=True):
        error = largest_error(result, _stored(expected.tensor, stored))
        checks.append(SampleCheck(entry.name, position, described.name, error, expected.tolerance))
    return checks


def _input(each: str | int, stored: Mapping[str, Weight]) -> Weight:
    return Weight("i64", np.asarray(each, np.int64)) if isinstance(each, int) else _stored(each, stored)


def _stored(name: str, stored: Mapping[str, Weight]) -> Weight:
    if name not in stored:
        raise damaged(f"a sample refers to {name!r}", f"{SAMPLES} holds no such tensor")
    return stored[name]


def largest_error(result: Weight, expected: Weight) -> float:
    """The largest difference of two tensors; infinite if dtypes or shapes differ, or only one is NaN."""
    if result.dtype != expected.dtype or result.carrier.shape != expected.carrier.shape:
        return float("inf")
    ours, theirs = (_numbers(each) for each in (result, expected))
    is_same = (ours == theirs) | (np.isnan(ours) & np.isnan(theirs))
    if bool(np.all(is_same)):
        return 0.0
    with np.errstate(invalid="ignore"):
        difference = np.abs(ours - theirs)[~is_same]
    return float(np.max(np.where(np.isnan(difference), np.inf, difference)))


def _numbers(weight: Weight) -> Array:
    """A tensor in double precision; larger integers are rounded to it."""
    carrier: Any = weight.carrier
    if weight.dtype == "bf16":
        carrier = (carrier.astype(np.uint32) << 16).view(np.float32)
    converted: Array = np.asarray(carrier, np.complex128 if DTYPES[weight.dtype].is_complex else np.float64)
    return converted
