"""``precast backends``: the values of ``backend=`` of ``precast.compile``."""

import json

import typer
from rich.table import Table
from rich.text import Text

from precast.backend import get_backend, list_backends
from precast.cli.examples import examples
from precast.cli.shared_options import AsJson
from precast.cli.tables import print_table
from precast.errors import ExtraMissingError, PrecastError
from precast.lazy_names import naming_extras

app = typer.Typer(add_completion=False, rich_markup_mode="markdown")
EXAMPLES = examples(
    "precast backends",
    "precast backends --json",
)


@app.command(epilog=EXAMPLES)
def backends(as_json: AsJson = False) -> None:
    """List the available backends."""
    described = {name: _describe(name) for name in list_backends()}
    if as_json:
        typer.echo(json.dumps(described, indent=2))
        return
    table = Table("backend", "what it does", box=None, pad_edge=False)
    for name, description in described.items():
        table.add_row(name, Text(description))
    print_table(table)


def _describe(name: str) -> str:
    # One backend that cannot be loaded (an extra that is not installed) must not hide the others.
    try:
        with naming_extras("it"):
            return get_backend(name).description
    except ExtraMissingError as error:
        return f"{error.what.removesuffix('.')}: {error.fix}"
    except PrecastError as error:
        return error.what
    except ImportError as error:
        return f"cannot be loaded: {error}"
