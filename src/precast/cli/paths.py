"""``precast paths``: the paths in an installation that builds of C and C++ programs need."""

import json
import sys
from enum import StrEnum
from importlib.resources import files
from pathlib import Path
from typing import Annotated

import typer

from precast.cli.examples import examples
from precast.cli.shared_options import AsJson
from precast.errors import ToolMissingError

app = typer.Typer(add_completion=False, rich_markup_mode="markdown")
_SOURCES = Path(__file__).parents[3]


class Part(StrEnum):
    """The parts that can be queried."""

    INCLUDE = "include"
    CMAKE = "cmake"
    ONEDNN = "onednn"


def installed_paths() -> dict[Part, Path]:
    """The folders of ``precast.h`` and of ``precastConfig.cmake``, and the library of oneDNN."""
    package = Path(str(files("precast")))
    # A checkout that is installed in place has these folders next to `src`.
    root = package if (package / "include").is_dir() else _SOURCES
    return {
        Part.INCLUDE: root / "include",
        Part.CMAKE: root / "cmake",
        Part.ONEDNN: Path(sys.prefix) / "lib" / "libdnnl.so.3",
    }


EXAMPLES = examples(
    'cc -I"$(precast paths include)" -c program.c',
    'cmake -B build -Dprecast_DIR="$(precast paths cmake)"',
)


@app.command(epilog=EXAMPLES)
def paths(
    part: Annotated[Part | None, typer.Argument(help="Print only this path.")] = None,
    as_json: AsJson = False,
) -> None:
    """Print where the header, the CMake package and oneDNN are."""
    found = installed_paths()
    if part is not None:
        if not found[part].exists():
            raise ToolMissingError(
                f"{found[part]} is not there.",
                why=f"{part} is not installed",
                fix="precast doctor says what to install",
            )
        found = {part: found[part]}
    if as_json:
        typer.echo(json.dumps({name: str(path) for name, path in found.items()}, indent=2))
    elif part is not None:
        typer.echo(found[part])
    else:
        for name, path in found.items():
            typer.echo(f"{name:8} {path}")
