"""``precast inspect``: shows the content of a file that Precast wrote."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from precast.artifact.package import open_package
from precast.cli import package_summary
from precast.cli.examples import examples
from precast.cli.shared_options import AsJson
from precast.cli.tables import print_table

app = typer.Typer(add_completion=False, rich_markup_mode="markdown")
EXAMPLES = examples(
    "precast inspect model.precast",
    "precast inspect program.pt2 --graph",
)


@app.command(epilog=EXAMPLES)
def inspect(
    file: Annotated[Path, typer.Argument(help="A .precast package, or a program from `precast export`.")],
    graph: Annotated[bool, typer.Option("--graph", help="Print the program; needs torch.")] = False,
    extra_file: Annotated[
        str | None, typer.Option("--extra-file", help="Print this extra file of an exported program.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show what is in a package or an exported program. Everything is checked; nothing is executed."""
    package = open_package(file, writable=True)
    if graph or extra_file is not None or not package.manifest.entries:
        # Exported programs are torch graphs; packages can be inspected without torch.
        from precast.cli import program_summary

        if extra_file is not None:
            text = program_summary.extra_file_text(file, extra_file)
            typer.echo(json.dumps({extra_file: text}, indent=2) if as_json else text)
            return
        if graph:
            text = program_summary.program_text(package)
            typer.echo(json.dumps({"graph": text}, indent=2) if as_json else text)
            return
        summary = program_summary.summary_of(file)
    else:
        summary = package_summary.summary_of(package, file)
    if as_json:
        typer.echo(json.dumps(summary, indent=2))
    else:
        print_table(_as_table(summary))


def _as_table(summary: Mapping[str, Any]) -> Table:
    table = Table(show_header=False, box=None, pad_edge=False)
    for key, value in summary.items():
        # Names come from the file and must not be parsed as markup.
        table.add_row(Text(key), _as_table(value) if isinstance(value, Mapping) else Text(_as_text(value) or "-"))
    return table


def _as_text(value: object) -> str:
    match value:
        case bool():
            return "yes" if value else "no"
        case int():
            return f"{value:,}"
        case list():
            return "\n".join(map(_as_text, value))
        case {"name": name, "runs here": bool(runs), "missing": missing}:
            return f"{name}, runs here" if runs else f"{name}, lacks {', '.join(missing)} here"
    return str(value)
