"""``precast bench``: how fast a model runs, compiled and in eager, or from a ``.precast`` file.

Alternates between timed calls, so that other load on the machine affects all alike.
"""

import json
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from precast.cli.examples import examples
from precast.cli.progress import seconds_text, telling_steps
from precast.cli.shared_options import AsJson, Threads
from precast.cli.tables import print_table

_SLICE_SECONDS = 0.2


@dataclass(frozen=True)
class Timing:
    """The times of calls: of the first, and the median of the best slice of the later ones."""

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


app = typer.Typer(add_completion=False, rich_markup_mode="markdown")
EXAMPLES = examples(
    "precast bench model.py:make",
    "precast bench model.py:make --train --threads 1",
    "precast bench model.precast --json",
)


@app.command(epilog=EXAMPLES)
def bench(
    model: Annotated[str, typer.Argument(help="package.module:factory, file.py:factory, or a .precast file.")],
    seconds: Annotated[float, typer.Option(help="How long to measure, in seconds.")] = 5.0,
    threads: Threads = None,
    train: Annotated[bool, typer.Option("--train", help="Include the backward.")] = False,
    freeze: Annotated[bool, typer.Option("--freeze", help="Compile with frozen parameters.")] = False,
    entry: Annotated[str | None, typer.Option(help="The entry of a .precast file to run.")] = None,
    as_json: AsJson = False,
) -> None:
    """Measure how fast a model runs, compared with eager.

    A model is timed compiled and in eager, in turns; a .precast file by itself, with its sample. A time is the median
    call of the best of several slices.
    """
    with telling_steps() as tell:
        tell(f"measuring {model}")
        if Path(model).suffix == ".precast":
            timings = _file(model, entry, threads, seconds)
        else:
            timings = _model(model, threads, seconds, train, freeze)
    if as_json:
        typer.echo(json.dumps({each.name: each.as_data() for each in timings}, indent=2))
        return
    print_table(_as_table(timings))


def _file(path: str, entry: str | None, threads: int | None, seconds: float) -> list[Timing]:
    from precast.artifact.package import open_package
    from precast.cli.package_calls import call_with_sample, packed_entry
    from precast.runtime import load

    package = open_package(Path(path))
    chosen = packed_entry(package, entry)
    return take_turns({chosen.name: call_with_sample(load(path, threads=threads), package, chosen)}, seconds)


def _model(reference: str, threads: int | None, seconds: float, train: bool, freeze: bool) -> list[Timing]:
    from precast.cli.model_reference import calls_to_compare

    return take_turns(calls_to_compare(reference, threads=threads, train=train, freeze=freeze), seconds)


def _as_table(timings: list[Timing]) -> Table:
    table = Table("", "a call", "first call", "calls", "times as fast", box=None, pad_edge=False)
    for each in timings:
        ratio = f"{timings[0].seconds / each.seconds:.2f}"
        table.add_row(each.name, seconds_text(each.seconds), seconds_text(each.first_seconds), str(each.calls), ratio)
    return table
