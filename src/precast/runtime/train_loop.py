"""Trains a saved step without torch: batches, checkpoints that are complete at every moment, a log, interruption."""

from __future__ import annotations

import json
import math
import re
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

from precast.artifact.archive import check_folder, write_file
from precast.artifact.weights import Weight, read_weights, weight_pieces
from precast.errors import ArtifactError, InputValueError, TrainingError
from precast.runtime.batches import Batch, check_finite
from precast.runtime.call import checked_leaves
from precast.runtime.model import Model, ModelEntry

TRAIN = "train_step"
CHECKPOINT = "checkpoint.safetensors"
_STEP = "training.step"
_RATE = re.compile(r"optimizer\.groups\.\d+\.lr")


@dataclass(frozen=True)
class Progress:
    """One completed step: its number from 1 on, its loss, and its duration."""

    step: int
    loss: float
    seconds: float


@dataclass(frozen=True)
class Trained:
    """How training ended: the steps of this run, and whether it was interrupted."""

    history: tuple[Progress, ...]
    was_stopped: bool


def train(
    model: Model,
    batches: Iterable[Any],
    *,
    steps: int,
    checkpoint: Path | None = None,
    checkpoint_every: int = 100,
    log: Path | None = None,
    resume: bool = False,
    learning_rate: float | None = None,
    on_step: Callable[[Progress], None] = lambda progress: None,
) -> Trained:
    """Train until ``steps`` steps have been made in total, including those before a ``resume``.

    ``batches`` may be any iterable, and is repeated as needed; each batch is passed to the entry ``train_step``. The
    result is in ``model.state``. It is also written to the folder ``checkpoint`` after every ``checkpoint_every``
    steps, at the end, and on Ctrl-C. ``log`` receives one line of JSON per step. ``learning_rate`` sets the rate of all
    groups.
    """
    _check(model, steps, checkpoint, resume)
    if checkpoint is not None:
        checkpoint.mkdir(parents=True, exist_ok=True)
        check_folder(checkpoint / CHECKPOINT)
    done = load_checkpoint(model, checkpoint) if resume and checkpoint is not None else 0
    for name in model.state if learning_rate is not None else ():
        if _RATE.fullmatch(name):
            model.state[name] = np.asarray(learning_rate, model.state[name].dtype)
    history: list[Progress] = []
    with _Log(log, keeps=done if resume else 0) as lines, _stop_asked() as is_asked:
        for batch in islice(_repeated(batches, done), max(steps - done, 0)):
            progress = _make_step(model, batch, done + 1)
            done = progress.step
            history.append(progress)
            lines.write(progress)
            on_step(progress)
            if checkpoint is not None and done % checkpoint_every == 0:
                save_checkpoint(model, checkpoint, done)
            if is_asked():
                break
        was_stopped = is_asked()
    if checkpoint is not None and history:
        save_checkpoint(model, checkpoint, done)
    return Trained(tuple(history), was_stopped)


def save_checkpoint(model: Model, folder: Path, step: int) -> Path:
    """Write the state and the number of steps as one file, which replaces the last one once it is complete."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / CHECKPOINT
    write_file(path, weight_pieces({**model.state.weights(), _STEP: Weight("i64", np.array(step, np.int64))}))
    return path


def load_checkpoint(model: Model, folder: Path) -> int:
    """Load the state of a checkpoint; returns the number of steps after which it was saved."""
    path = folder / CHECKPOINT
    try:
        found = read_weights(memoryview(path.read_bytes()))
    except OSError as problem:
        why = problem.strerror or str(problem)
        raise ArtifactError(f"{path} cannot be read", why=why, fix="train without --resume first") from problem
    step = found.pop(_STEP, None)
    if step is None or step.dtype != "i64" or step.carrier.shape != () or step.carrier < 0:
        raise ArtifactError(f"{path} is not a checkpoint", why="it does not say its step", fix="name another folder")
    model.state.take(found, str(path))
    return int(step.carrier)


def _make_step(model: Model, batch: Any, number: int) -> Progress:
    started = time.perf_counter()
    entry = model[TRAIN]
    is_named = isinstance(batch, Batch)
    name, arguments = (batch.name, batch.arguments) if is_named else (f"the batch of step {number}", (batch,))
    try:
        if isinstance(entry, ModelEntry):
            leaves, _ = checked_leaves(entry.call, arguments, {}, on_gpu=entry.runnable.on_gpu)
            check_finite(batch.arrays.items() if is_named else leaves)
        result = entry(*arguments)
    except InputValueError as problem:
        raise InputValueError(f"{name}: {problem.what}", why=problem.why, fix=problem.fix) from problem
    loss = float(np.asarray(result[0] if isinstance(result, tuple | list) else result))
    if not math.isfinite(loss) and "optimizer.skipped" not in model.state:
        raise TrainingError(
            f"The loss is {loss} after step {number}.",
            why="the training has diverged; the parameters are unusable",
            fix="Continue from the last checkpoint with a smaller learning rate, or save the step with "
            "grad_clip= or skip_nonfinite=True.",
        )
    return Progress(number, loss, time.perf_counter() - started)


def _repeated(batches: Iterable[Any], skipped: int) -> Iterator[Any]:
    """The batches repeatedly, from the one after ``skipped``; an iterator that can be read only once ends."""
    if isinstance(batches, Sequence):
        return (batches[number % len(batches)] for number in _counting(skipped))
    if iter(batches) is batches:
        return islice(batches, skipped, None)
    return islice(chain.from_iterable(iter(batches) for _ in _counting(0)), skipped, None)


def _counting(first: int) -> Iterator[int]:
    while True:
        yield first
        first += 1


class _Log:
    """One line for each step; of an existing file, the lines up to ``keeps`` are kept."""

    def __init__(self, path: Path | None, *, keeps: int) -> None:
        self._path, self._keeps = path, keeps
        self._file: Any = None

    def __enter__(self) -> _Log:
        if self._path is not None:
            kept = _logged(self._path, self._keeps)
            write_file(self._path, [line.encode() for line in kept])
            self._file = self._path.open("a")
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()

    def write(self, progress: Progress) -> None:
        if self._file is not None:
            self._file.write(_line(progress))
            self._file.flush()


def _line(progress: Progress) -> str:
    record: Mapping[str, Any] = {"step": progress.step, "loss": progress.loss, "seconds": round(progress.seconds, 6)}
    return json.dumps(record) + "\n"


def _logged(path: Path, keeps: int) -> list[str]:
    """The earlier lines of complete steps; a truncated last line is dropped."""
    if not keeps or not path.exists():
        return []
    with path.open() as file:
        return [line for line in islice(file, keeps) if line.endswith("\n")]


@contextmanager
def _stop_asked() -> Iterator[Callable[[], bool]]:
    """Yields a function that says whether the user pressed Ctrl-C; a second Ctrl-C has its usual effect."""
    asked = False

    def ask(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        asked = True
        signal.signal(signal.SIGINT, signal.default_int_handler)

    try:
        before = signal.signal(signal.SIGINT, ask)
    except ValueError:
        # Signal handlers can be set in the main thread only.
        yield lambda: False
        return
    try:
        yield lambda: asked
    finally:
        signal.signal(signal.SIGINT, before)


def _check(model: Model, steps: int, checkpoint: Path | None, resume: bool) -> None:
    if TRAIN not in model:
        raise InputValueError(
            f"The model has no entry {TRAIN!r}.",
            why=f"its entries are {', '.join(model)}",
            fix="Save a step: precast.train_step(…).save(path).",
        )
    if steps < 1:
        raise InputValueError(f"steps cannot be {steps}.", why="it counts steps", fix="Pass 1 or more.")
    if resume and checkpoint is None:
        raise InputValueError("There is no checkpoint to resume from.", why="none was named", fix="Pass checkpoint=.")
