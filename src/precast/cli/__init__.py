"""The ``precast`` command: one file a subcommand, imported when that subcommand is called.

So ``precast --help`` stays quick and needs no torch. A subcommand's file holds a ``typer.Typer`` called ``app``.
"""

import sys
from importlib import import_module
from types import TracebackType
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from precast._version import __version__
from precast.errors import ArtifactError, PrecastError
from precast.lazy_names import naming_extras

FAILED, REFUSED = 1, 3
"""Exit codes beside 0 and the 2 of a wrong call; REFUSED is for files that are damaged or not what was asked for."""

# Subcommand, which is also its file → what the help says of it.
SUBCOMMANDS = {
    "backends": "List what can be chosen as backend.",
    "bench": "Measure how fast a model runs.",
    "cache": "Show or empty the cache of compiled programs.",
    "compile": "Compile a model into one shared library for this machine.",
    "doctor": "Check that this machine has what Precast needs.",
    "explain": "Tell what native code a model becomes, and where its time goes.",
    "export": "Export a module to a file.",
    "generate": "Generate text with a packaged language model, without torch.",
    "inspect": "Show what is in a file.",
    "onnx": "Write a model as an ONNX file.",
    "package": "Package a model into one file that runs without torch.",
    "paths": "Show where the header, the CMake package and oneDNN are.",
    "plan": "Tell what a training step would take over many processes.",
    "report": "Write a page about what a model becomes.",
    "run": "Run a .precast file, without torch.",
    "train": "Train a saved step, without torch.",
    "verify": "Check a .precast file and its numbers on this machine.",
}


class _LazyCommand(TyperCommand):
    """Stands in the help for a subcommand whose file is not imported until it is called."""

    # Typer has no public name for the types of these arguments.
    def make_context(self, info_name: Any, args: Any, parent: Any = None, **extra: Any) -> Any:
        app = import_module(f"precast.cli.{self.name}").app
        return get_command(app).make_context(info_name, args, parent, **extra)


class _PrecastGroup(TyperGroup):
    """The subcommands; tells a user's error as a message, and shows where it was raised only under ``--debug``."""

    def __init__(self, **settings: Any):
        super().__init__(**settings)
        self.commands = {name: _LazyCommand(name, help=summary) for name, summary in SUBCOMMANDS.items()}

    def invoke(self, ctx: Any) -> Any:
        try:
            with naming_extras("This command"):
                return super().invoke(ctx)
        except (PrecastError, OSError) as error:
            if ctx.params["debug"]:
                raise
            typer.echo(f"error: {error}", err=True)
            raise typer.Exit(REFUSED if isinstance(error, ArtifactError) else FAILED) from None


app = typer.Typer(cls=_PrecastGroup, no_args_is_help=True, pretty_exceptions_enable=False)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"precast {__version__}")
        raise typer.Exit


@app.callback(epilog="Exit codes: 0 done, 1 failed, 2 called wrongly, 3 a file was refused.")
def precast(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and leave.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show where in Precast an error was raised.")] = False,
) -> None:
    """Compile PyTorch programs ahead of time: the forward, the backward and the whole training step."""


def main() -> None:
    """Run the command that the process was started with."""
    if "--debug" not in sys.argv:
        sys.excepthook = _tell_unexpected
    get_command(app)(prog_name="precast")


def _tell_unexpected(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """What nobody foresaw, in a few lines; the way to it is shown when asked for."""
    from precast.cli.unexpected import unexpected_message

    typer.echo(unexpected_message(error, trace), err=True)
