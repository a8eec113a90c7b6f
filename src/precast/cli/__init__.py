"""The ``precast`` command: one file a subcommand, imported when that subcommand is called.

So ``precast --help`` is fast and needs no torch. A subcommand's file has a ``typer.Typer`` called ``app``.
"""

import sys
import warnings
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
"""Exit codes besides 0, and the 2 of a wrong call; REFUSED is for files that are damaged or not as required."""

# Subcommand, which is also its file → its help text.
SUBCOMMANDS = {
    "backends": "List the available backends.",
    "bench": "Measure how fast a model runs, compared with eager.",
    "cache": "Show or empty the cache of compiled programs.",
    "compile": "Compile a model to a shared library for this machine.",
    "doctor": "Check this machine for everything that Precast needs.",
    "explain": "Show what a model is compiled to, and where the time goes.",
    "export": "Export a model to a file.",
    "generate": "Generate text with a packaged language model, without torch.",
    "inspect": "Show what is in a package or an exported program.",
    "onnx": "Export a model to ONNX.",
    "package": "Package a model into one file that runs without torch.",
    "paths": "Print where the header, the CMake package and oneDNN are.",
    "plan": "Predict how a training step scales to many processes.",
    "report": "Write an interactive report about a compiled model.",
    "run": "Run a .precast file, without torch.",
    "train": "Train with a saved step, without torch.",
    "verify": "Verify a .precast file and its results on this machine.",
}


class _LazyCommand(TyperCommand):
    """A subcommand in the help, whose file is not imported until it is called."""

    # Typer has no public name for the types of these arguments.
    def make_context(self, info_name: Any, args: Any, parent: Any = None, **extra: Any) -> Any:
        app = import_module(f"precast.cli.{self.name}").app
        return get_command(app).make_context(info_name, args, parent, **extra)


class _PrecastGroup(TyperGroup):
    """The subcommands; prints a user's error as a message, with the traceback only under ``--debug``."""

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
            typer.echo(f"error: {_message(error)}", err=True)
            raise typer.Exit(REFUSED if isinstance(error, ArtifactError) else FAILED) from None


def _message(error: PrecastError | OSError) -> str:
    if isinstance(error, PrecastError) or error.strerror is None:
        return str(error)
    return f"{error.filename}: {error.strerror}" if error.filename else error.strerror


app = typer.Typer(cls=_PrecastGroup, no_args_is_help=True, pretty_exceptions_enable=False)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"precast {__version__}")
        raise typer.Exit


@app.callback(
    epilog="Exit codes: 0 success, 1 failure, 2 usage error, 3 a file was refused, 130 interrupted by Ctrl-C."
)
def precast(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Print tracebacks of errors.")] = False,
) -> None:
    """An ahead-of-time compiler for PyTorch: the forward, the backward and the whole training step."""


def main() -> None:
    """Run the command that the process was started with."""
    if "--debug" not in sys.argv:
        sys.excepthook = _print_unexpected
        warnings.showwarning = _print_warning
    get_command(app)(prog_name="precast")


_show_warning = warnings.showwarning


def _print_warning(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> None:
    """Our warnings in one line, since the location is only that of the command; others as usual."""
    if category.__module__.startswith("precast."):
        typer.echo(f"warning: {message}", err=True)
    else:
        _show_warning(message, category, *place, **more)


def _print_unexpected(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """An unexpected error in a few lines; the traceback is shown on request."""
    from precast.cli.unexpected import unexpected_message

    typer.echo(unexpected_message(error, trace), err=True)
