"""Trains a saved step without torch: batches, checkpoints that are whole at every moment, a log, a stop in between."""

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

from precast.artifact.archive import write_file
from precast.artifact.weights import Weight, read_weights, weight_pieces
from precast.errors import ArtifactError, InputValueError, TrainingError
from precast.runtime.batches import Batch
from precast.runtime.model import Model

TRAIN = "train_step"
CHECKPOINT = "checkpoint.safetensors"
_STEP = "training.step"
_RATE = re.compile(r"optimizer\.groups\.\d+\.lr")


@dataclass(frozen=True)
class Progress:
    """One step that was made: its number from 1 on, its loss, and how long it took."""

    step: int
    loss: float
    seconds: float


@dataclass(frozen=True)
class Trained:
    """How training ended: the steps of this run, and whether it was stopped."""

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
    """Make steps until there were ``steps`` of them, counting those before a ``resume``; batches begin anew at the end.

    ``batches`` may be any iterable; each is passed to the entry ``train_step``. What was trained is in ``model.state``,
    and in ``checkpoint``, a folder, after every ``checkpoint_every`` steps, at the end, and when the user stops it.
    ``log`` gets one line of JSON for each step. ``learning_rate`` is that of all groups from now on.
    """
    _check(model, steps, checkpoint, resume)
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
    """Write the state and the number of steps as one file, which replaces the last one when it is complete."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / CHECKPOINT
    write_file(path, weight_pieces({**model.state.weights(), _STEP: Weight("i64", np.array(step, np.int64))}))
    return path


def load_checkpoint(model: Model, folder: Path) -> int:
    """Take the state of a checkpoint; gives after how many steps it was saved."""
    path = folder / CHECKPOINT
    try:
        found = read_weights(memoryview(path.read_bytes()))
    except OSError as problem:
        raise ArtifactError(f"{path} cannot be read", why=str(problem), fix="train without --resume first") from problem
    step = found.pop(_STEP, None)
    if step is None or step.dtype != "i64" or step.carrier.shape != ():
        raise ArtifactError(f"{path} is no checkpoint", why="it does not say its step", fix="name another folder")
    model.state.take(found, str(path))
    return int(step.carrier)


def _make_step(model: Model, batch: Any, number: int) -> Progress:
    started = time.perf_counter()
    if isinstance(batch, Batch):
        batch.check_numbers()
    try:
        result = model[TRAIN](*batch.arguments) if isinstance(batch, Batch) else model[TRAIN](batch)
    except InputValueError as problem:
        name = batch.name if isinstance(batch, Batch) else f"the batch of step {number}"
        raise InputValueError(f"{name}: {problem.what}", why=problem.why, fix=problem.fix) from problem
    loss = float(np.asarray(result[0] if isinstance(result, tuple | list) else result))
    if not math.isfinite(loss) and "optimizer.skipped" not in model.state:
        raise TrainingError(
            f"The loss is {loss} after step {number}.",
            why="the training has diverged; the parameters are of no use any more",
            fix="Go on from the last checkpoint with a smaller learning rate, or save the step with "
            "grad_clip= or skip_nonfinite=True.",
        )
    return Progress(number, loss, time.perf_counter() - started)


def _repeated(batches: Iterable[Any], skipped: int) -> Iterator[Any]:
    """The batches again and again, from the one after ``skipped``; an iterator that can be read once ends."""
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
    """One line for each step; of a file that is there already, the lines up to ``keeps`` stay."""

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
    """The lines of whole steps before; a last line that was cut is dropped."""
    if not keeps or not path.exists():
        return []
    with path.open() as file:
        return [line for line in islice(file, keeps) if line.endswith("\n")]


@contextmanager
def _stop_asked() -> Iterator[Callable[[], bool]]:
    """Tells whether the user pressed Ctrl-C; the second time it means what it always means."""
    asked = False

    def ask(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        asked = True
        signal.signal(signal.SIGINT, signal.default_int_handler)

    try:
        before = signal.signal(signal.SIGINT, ask)
    except ValueError:
        # Only the main thread may be asked.
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
