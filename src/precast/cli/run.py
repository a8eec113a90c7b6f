"""``precast run``: call an entry of a ``.precast`` file, without torch."""

import json
import time
from pathlib import Path
from typing import Annotated, Any

import numpy
import typer
from rich.table import Table
from rich.text import Text

from precast.artifact.archive import check_folder
from precast.artifact.package import open_package
from precast.cli.examples import examples
from precast.cli.package_calls import Array, call_with_arrays, call_with_sample, named_arrays, packed_entry, read_arrays
from precast.cli.progress import seconds_text, telling_steps
from precast.cli.shared_options import AsJson, NativeTarget, PublicKey, Threads
from precast.cli.tables import print_table
from precast.runtime import load

app = typer.Typer(add_completion=False, rich_markup_mode="markdown")
EXAMPLES = examples(
    "precast run model.precast",
    "precast run model.precast -i x.npy -o results.npz",
    "precast run model.precast --entry short --require-signature public.pem",
)


@app.command(epilog=EXAMPLES)
def run(
    file: Annotated[Path, typer.Argument(help="A .precast file.")],
    inputs: Annotated[
        list[Path] | None,
        typer.Option("--input", "-i", help="A .npy or .npz file per tensor, repeatable; by default the file's sample."),
    ] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write the results to this .npz file.")] = None,
    entry: Annotated[str | None, typer.Option(help="The entry to call.")] = None,
    threads: Threads = None,
    target: NativeTarget = None,
    key: PublicKey = None,
    as_json: AsJson = False,
) -> None:
    """Run a .precast file, without torch.

    Native code in the file runs with your rights: only run files from people you trust, or require their signature.
    """
    if output is not None:
        check_folder(output)
    with telling_steps() as tell:
        tell(f"loading {file}")
        started = time.perf_counter()
        model = load(file, threads=threads, target=target, require_signature=key)
        loaded = time.perf_counter()
        package = open_package(file)
        chosen = packed_entry(package, entry)
        arrays = read_arrays(inputs or [])
        call = call_with_arrays(model, chosen, arrays) if inputs else call_with_sample(model, package, chosen)
        tell(f"running {chosen.name}")
        called = time.perf_counter()
        results = named_arrays(call())
        seconds = time.perf_counter() - called
        if output is not None:
            # An open file, since numpy would add .npz to another name.
            with output.open("wb") as opened:
                numpy.savez(opened, **results)  # type: ignore[arg-type]
    facts: dict[str, Any] = {
        "entry": chosen.name,
        "target": model.target,
        "load_seconds": loaded - started,
        "call_seconds": seconds,
    }
    if as_json:
        typer.echo(json.dumps({**facts, "outputs": {name: _facts(array) for name, array in results.items()}}, indent=2))
        return
    typer.echo(f"{chosen.name} ({model.target}): loaded in {seconds_text(loaded - started)}, "
               f"ran in {seconds_text(seconds)}")  # fmt: skip
    print_table(_as_table(results))


def _facts(array: Array) -> dict[str, Any]:
    numbers = array.astype(numpy.float64) if array.size else numpy.zeros(1)
    return {
        "dtype": str(array.dtype),
        "shape": list(array.shape),
        "mean": float(numbers.mean()),
        "min": float(numbers.min()),
        "max": float(numbers.max()),
    }


def _as_table(results: dict[str, Array]) -> Table:
    table = Table("result", "dtype", "shape", box=None, pad_edge=False)
    for column in ("mean", "min", "max"):
        table.add_column(column, justify="right")
    for name, array in results.items():
        facts = _facts(array)
        numbers = [f"{facts[column]:.6g}" for column in ("mean", "min", "max")]
        table.add_row(Text(name), facts["dtype"], "×".join(map(str, array.shape)) or "scalar", *numbers)  # noqa: RUF001
    return table
