"""``precast train``: train a saved step, without torch."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from precast.artifact.archive import check_folder, write_file
from precast.cli.examples import examples
from precast.cli.progress import LoggedSteps, seconds_text
from precast.cli.shared_options import AsJson, PublicKey, Threads
from precast.errors import InputValueError
from precast.runtime import ModelEntry, load
from precast.runtime.batches import BatchFiles
from precast.runtime.loss_curve import loss_curve
from precast.runtime.train_loop import CHECKPOINT, TRAIN, Trained, train
from precast.runtime.train_loop import Progress as Step

app = typer.Typer(add_completion=False, rich_markup_mode="markdown")
STOPPED = 130
"""The exit code after Ctrl-C, as in shells."""
EXAMPLES = examples(
    "precast train step.precast --data batches.npz --steps 1000",
    "precast train step.precast --data batches/ --steps 5000 --checkpoint out --resume",
)


@app.command(name="train", epilog=EXAMPLES)
def train_command(
    file: Annotated[Path, typer.Argument(help="A .precast file that precast.train_step(…).save wrote.")],
    data: Annotated[
        Path, typer.Option("--data", "-d", help="Batches: an .npz file, or a folder of .npy or .npz files.")
    ],
    steps: Annotated[int, typer.Option("--steps", "-n", help="Total number of steps.")],
    checkpoint: Annotated[Path | None, typer.Option(help="A folder for checkpoints.")] = None,
    every: Annotated[int, typer.Option(min=1, help="Write a checkpoint every so many steps, and at the end.")] = 100,
    resume: Annotated[bool, typer.Option("--resume", help="Continue from the checkpoint.")] = False,
    log: Annotated[
        Path | None, typer.Option(help="Write step, loss and seconds to this file, one line of JSON per step.")
    ] = None,
    curve: Annotated[
        Path | None,
        typer.Option(help="Write a plot of the losses to this file; by default in the checkpoint's folder."),
    ] = None,
    rate: Annotated[float | None, typer.Option("--lr", help="The learning rate of all parameter groups.")] = None,
    threads: Threads = None,
    key: PublicKey = None,
    as_json: AsJson = False,
) -> None:
    """Train with a saved step, without torch.

    Ctrl-C stops after the current step and saves a checkpoint. Native code in the file runs with your rights: only run
    files from people you trust, or require their signature.
    """
    if curve is not None:
        curve.parent.mkdir(parents=True, exist_ok=True)
        check_folder(curve)
    model = load(file, threads=threads, require_signature=key)
    if TRAIN not in model or not isinstance(entry := model[TRAIN], ModelEntry):
        raise InputValueError(
            f"{file} has no entry {TRAIN!r}.", why="it holds no training step", fix="Make one with precast.train_step."
        )
    batches = BatchFiles(data, entry)
    with _shown(steps) as show:
        trained = train(
            model,
            batches,
            steps=steps,
            checkpoint=checkpoint,
            checkpoint_every=every,
            log=log,
            resume=resume,
            learning_rate=rate,
            on_step=show,
        )
    drawn = curve or (checkpoint / "loss.svg" if checkpoint is not None else None)
    if drawn is not None and trained.history:
        _draw(trained, drawn, title=file.name)
    _tell(trained, checkpoint, drawn, as_json=as_json)
    if trained.was_stopped:
        raise typer.Exit(STOPPED)


@contextmanager
def _shown(steps: int) -> Iterator[Callable[[Step], None]]:
    """A progress bar on a terminal: loss, steps per second, time left; elsewhere a line from time to time."""
    columns = (
        TextColumn("loss {task.fields[loss]}"), BarColumn(), MofNCompleteColumn(),
        TextColumn("{task.fields[speed]} steps/s"), TimeRemainingColumn(),
    )  # fmt: skip
    console = Console(stderr=True)
    if not console.is_terminal:
        with LoggedSteps() as logged:
            logged.begin("training")
            yield lambda step: logged.goes_on(f"step {step.step} of {steps}, loss {step.loss:.4f}")
        return
    with Progress(*columns, console=console) as bar:
        task = bar.add_task("", total=steps, loss="…", speed="…")

        def show(step: Step) -> None:
            speed = f"{1 / step.seconds:.1f}" if step.seconds > 0 else "…"
            bar.update(task, completed=step.step, loss=f"{step.loss:.4f}", speed=speed)

        yield show


def _draw(trained: Trained, path: Path, *, title: str) -> None:
    steps, losses = [each.step for each in trained.history], [each.loss for each in trained.history]
    write_file(path, [loss_curve(steps, losses, title=title).encode()])


def _tell(trained: Trained, checkpoint: Path | None, drawn: Path | None, *, as_json: bool) -> None:
    history = trained.history
    seconds = sum(each.seconds for each in history)
    if as_json:
        facts = {
            "steps": history[-1].step if history else None,
            "loss": history[-1].loss if history else None,
            "first_loss": history[0].loss if history else None,
            "seconds": seconds,
            "was_stopped": trained.was_stopped,
            "checkpoint": None if checkpoint is None else str(checkpoint / CHECKPOINT),
            "curve": None if drawn is None else str(drawn),
        }
        typer.echo(json.dumps(facts, indent=2))
        return
    if not history:
        typer.echo("there was nothing left to do")
        return
    first, last = history[0], history[-1]
    stopped = ", stopped" if trained.was_stopped else ""
    typer.echo(
        f"{len(history)} steps to step {last.step} in {seconds_text(seconds)}{stopped}: "
        f"loss {first.loss:.4f} → {last.loss:.4f}"
    )
    for name, path in (("state", checkpoint and checkpoint / CHECKPOINT), ("losses", drawn)):
        if path is not None:
            typer.echo(f"{name}: {path}")
