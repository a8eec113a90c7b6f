"""``precast verify``: checks that a ``.precast`` file is intact, and computes the same here as where it was made."""

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from precast.cli.examples import examples
from precast.cli.progress import telling_steps
from precast.cli.shared_options import AsJson, NativeTarget, PublicKey, Threads
from precast.cli.tables import print_table
from precast.runtime import load

app = typer.Typer(add_completion=False, rich_markup_mode="markdown")
EXAMPLES = examples(
    "precast verify model.precast",
    "precast verify model.precast --no-native",
)


@app.command(epilog=EXAMPLES)
def verify(
    file: Annotated[Path, typer.Argument(help="A .precast file.")],
    threads: Threads = None,
    target: NativeTarget = None,
    native: Annotated[
        bool, typer.Option(help="Run the file's native code, or interpret the program with torch.")
    ] = True,
    key: PublicKey = None,
    as_json: AsJson = False,
) -> None:
    """Verify a .precast file and its results on this machine.

    Every hash is checked; then every sample is run, and its results are compared with those computed in float64. If
    anything differs, the exit code is 3.
    """
    with telling_steps() as tell:
        tell(f"verifying {file}")
        model = load(file, threads=threads, target=target, allow_native=native, require_signature=key)
        checks = model.verify()
    if as_json:
        typer.echo(
            json.dumps({"ok": True, "target": model.target, "checks": [each._asdict() for each in checks]}, indent=2)
        )
        return
    table = Table("entry", "sample", "output", box=None, pad_edge=False)
    for column in ("largest error", "allowed"):
        table.add_column(column, justify="right")
    for each in checks:
        table.add_row(
            Text(each.entry), str(each.sample), Text(each.output), f"{each.largest_error:.3g}", f"{each.tolerance:.3g}"
        )
    if checks:
        print_table(table)
    agreed = f"{len(checks)} output{'s' * (len(checks) > 1)} of samples as expected" if checks else "no samples to run"
    typer.echo(f"{file}: intact, {agreed}")
