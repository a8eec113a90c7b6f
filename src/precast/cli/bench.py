"""``precast bench``: how fast a model runs, compiled and eagerly, or out of a ``.precast`` file."""

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from precast.cli.amounts import seconds_text
from precast.cli.timing import Timing, take_turns

app = typer.Typer(add_completion=False, rich_markup_mode="markdown")


@app.command()
def bench(
    model: Annotated[str, typer.Argument(help="package.module:factory, file.py:factory, or a .precast file.")],
    seconds: Annotated[float, typer.Option(help="How long to measure.")] = 5.0,
    threads: Annotated[int | None, typer.Option(help="How many threads; as many as OpenMP takes if not given.")] = None,
    train: Annotated[bool, typer.Option("--train", help="Time the backward, too.")] = False,
    freeze: Annotated[bool, typer.Option("--freeze", help="Compile with weights as constants.")] = False,
    entry: Annotated[str | None, typer.Option(help="Which entry of a .precast file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Measure how fast a model runs.

    A model is timed compiled and eagerly, in turns; a .precast file by itself, with its sample. A time is the median
    call of the best of several slices.
    """
    with Console(stderr=True).status("measuring"):
        if Path(model).suffix == ".precast":
            timings = _file(model, entry, threads, seconds)
        else:
            timings = _model(model, threads, seconds, train, freeze)
    if as_json:
        typer.echo(json.dumps({each.name: each.as_data() for each in timings}, indent=2))
        return
    Console().print(_as_table(timings))


def _file(path: str, entry: str | None, threads: int | None, seconds: float) -> list[Timing]:
    from precast.artifact.package import open_package
    from precast.cli.package_calls import call_with_sample, packed_entry
    from precast.runtime import load

    package = open_package(Path(path))
    chosen = packed_entry(package, entry)
    return take_turns({chosen.name: call_with_sample(load(path, threads=threads), package, chosen)}, seconds)


def _model(reference: str, threads: int | None, seconds: float, train: bool, freeze: bool) -> list[Timing]:
    from precast.cli.model_calls import calls_to_compare

    return take_turns(calls_to_compare(reference, threads=threads, train=train, freeze=freeze), seconds)


def _as_table(timings: list[Timing]) -> Table:
    table = Table("", "a call", "first call", "calls", "times as fast", box=None, pad_edge=False)
    for each in timings:
        ratio = f"{timings[0].seconds / each.seconds:.2f}"
        table.add_row(each.name, seconds_text(each.seconds), seconds_text(each.first_seconds), str(each.calls), ratio)
    return table
