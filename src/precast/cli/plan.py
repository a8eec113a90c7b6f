"""``precast plan``: predicts a training step over many processes from a measured one."""

import json
import math
import re
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

import precast
from precast.artifact.archive import check_folder, write_file
from precast.cli.examples import examples
from precast.cli.model_reference import call_factory
from precast.cli.progress import seconds_text, telling_steps
from precast.cli.shared_options import AsJson
from precast.cli.tables import print_table
from precast.errors import InputTypeError, InputValueError
from precast.runtime.line_drawing import Line, draw_lines

if TYPE_CHECKING:
    from precast.training.plan import PlannedStep
    from precast.training.timeline import Timeline

app = typer.Typer(add_completion=False, rich_markup_mode="markdown")
_WARM, _MEASURED = 2, 5
_UNITS = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30}
_PARTS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0}
EXAMPLES = examples(
    "precast plan step.json --ranks 1024 --bandwidth 50GB/s",
    "precast plan train.py:make --ranks 64 --bandwidth 400Gb/s --shard optimizer --plot plan.svg",
)


@app.command(name="plan", epilog=EXAMPLES)
def plan_command(
    step: Annotated[
        str,
        typer.Argument(
            help="A file that `step.timeline(batch).save(path)` wrote, or `file.py:make`, a function that returns "
            "(model, loss_fn, optimizer, batch): such a step is measured here, in one process."
        ),
    ],
    ranks: Annotated[int, typer.Option(min=1, help="The maximum number of processes.")],
    bandwidth: Annotated[str, typer.Option(help="Bandwidth of each process: 50GB/s, or 400Gb/s in bits.")],
    latency: Annotated[str, typer.Option(help="Network latency, such as 5us.")] = "10us",
    shard: Annotated[
        str, typer.Option(help="Sharding, for a step measured here: none, optimizer or parameters.")
    ] = "none",
    bucket: Annotated[str, typer.Option(help="Size of gradient buckets, for a step measured here.")] = "25MiB",
    plot: Annotated[Path | None, typer.Option(help="Write a plot of the efficiency to this file, as SVG.")] = None,
    as_json: AsJson = False,
) -> None:
    """Predict how a training step scales to many processes.

    In the prediction, each process does the same work as the measured one, on a batch of its own. Gradients are reduced
    bucket by bucket, overlapped with the backward, at the given network speed.
    """
    from precast.training.plan import Network, plan, powers_of_two
    from precast.training.timeline import read_timeline

    if plot is not None:
        check_folder(plot)
    network = Network(parse_bytes(bandwidth), parse_seconds(latency))
    with telling_steps() as tell:
        if step.endswith(".json"):
            timeline = read_timeline(Path(step))
        else:
            tell(f"compiling and measuring {step}")
            timeline = _measured(step, shard, int(parse_bytes(bucket)))
    planned = plan(timeline, network, powers_of_two(ranks))
    if plot is not None:
        write_file(plot, [_drawing(planned, step).encode()])
    if as_json:
        facts = [{**asdict(each), "efficiency": each.efficiency, "speedup": each.speedup} for each in planned]
        typer.echo(json.dumps({"network": asdict(network), "steps": facts}, indent=2))
        return
    _tell(timeline, planned)
    if plot is not None:
        typer.echo(f"plot: {plot}")


def parse_bytes(text: str) -> float:
    """``50GB/s``, ``400Gb/s`` (bits), ``25MiB`` → bytes."""
    found = re.fullmatch(r"([\d.]+)\s*([kMGT]?|[KMG]i)([bB])?(/s)?", text.strip())
    if found is None or not _is_number(found[1]) or float(found[1]) <= 0:
        raise InputValueError(f"{text!r} is not a byte count.", why="it is a number and a unit", fix="Write 50GB/s.")
    return float(found[1]) * _UNITS[found[2]] / (8 if found[3] == "b" else 1)


def parse_seconds(text: str) -> float:
    """``5us`` → seconds."""
    found = re.fullmatch(r"([\d.]+)\s*(ns|us|µs|ms|s)", text.strip())
    if found is None or not _is_number(found[1]):
        raise InputValueError(f"{text!r} is not a time.", why="it is a number and a unit", fix="Write 5us, or 0.1ms.")
    return float(found[1]) * _PARTS[found[2]]


def _is_number(text: str) -> bool:
    return text.count(".") <= 1 and text != "."


def _measured(reference: str, shard: str, bucket_bytes: int) -> "Timeline":
    """The best of several steps, measured here in a process group of one, whose collectives cost nothing."""
    import torch

    made: Any = call_factory(reference)
    if not isinstance(made, tuple) or len(made) != 4:
        raise InputTypeError(
            f"{reference} returned an object of type {type(made).__name__}.",
            why="a training step needs four things",
            fix="Return (model, loss_fn, optimizer, batch).",
        )
    model, loss_fn, optimizer, batch = made
    with tempfile.TemporaryDirectory() as folder:
        torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
        try:
            group = torch.distributed.group.WORLD
            step = precast.train_step(
                model, loss_fn, optimizer, batch, process_group=group, shard=shard, bucket_bytes=bucket_bytes
            )
            for _ in range(_WARM):
                step(batch)
            return min((step.timeline(batch) for _ in range(_MEASURED)), key=lambda each: each.seconds)
        finally:
            torch.distributed.destroy_process_group()


def _tell(timeline: "Timeline", planned: list["PlannedStep"]) -> None:
    exchanged = sum(each.bytes for each in timeline.exchanges)
    typer.echo(
        f"measured: {seconds_text(timeline.seconds)} a step with {timeline.processes} processes, "
        f"{len(timeline.exchanges)} exchanges of {exchanged / 1e6:.1f} MB together"
    )
    table = Table(box=None)
    for column in ("ranks", "step", "waiting", "efficiency", "speed-up"):
        table.add_column(column, justify="right")
    for each in planned:
        table.add_row(
            str(each.processes),
            seconds_text(each.seconds),
            seconds_text(each.waiting_seconds),
            f"{each.efficiency:.1%}",
            f"{each.speedup:.1f}x",
        )
    print_table(table)


def _drawing(planned: list["PlannedStep"], step: str) -> str:
    points = [(math.log2(each.processes), 100 * each.efficiency) for each in planned]
    title = f"{step}: percent of the time in which processes compute"
    line = Line(points, labels=[str(each.processes) for each in planned])
    return draw_lines([line], title=title, x_label="log2 of the processes", y_label="%")
