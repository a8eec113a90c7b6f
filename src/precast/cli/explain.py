"""``precast explain module:factory``: what native code a model becomes."""

import sys
from importlib import import_module
from typing import Annotated, Any

import typer

from precast.errors import InputTypeError, InputValueError
from precast.report import explain as explain_call

app = typer.Typer(add_completion=False)


@app.command()
def explain(
    factory: Annotated[str, typer.Argument(help="module:function; it returns (model, args) or (model, args, kwargs).")],
) -> None:
    """Tell what native code a model becomes."""
    model, args, kwargs = made_by(factory)
    typer.echo(str(explain_call(model, *args, **kwargs)))


def made_by(factory: str) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """What the function called ``module:function`` returns: a model and one call of it."""
    module_name, _, name = factory.partition(":")
    if not module_name or not name:
        raise InputValueError(
            f"{factory!r} names no function",
            why="the model comes from a function that makes it, named module:function",
            fix="write, for example, precast explain my_models:small_bert",
        )
    # As `python -m` does: a module of the folder that one is in can be named.
    sys.path.insert(0, "")
    try:
        function = getattr(import_module(module_name), name)
    except (ImportError, AttributeError) as problem:
        raise InputValueError(
            f"{factory!r} cannot be imported",
            why=str(problem),
            fix="check the names, and run the command where the module can be imported",
        ) from problem
    made = function()
    if not isinstance(made, tuple) or len(made) not in (2, 3) or not isinstance(made[1], tuple):
        raise InputTypeError(
            f"{factory} returned a {type(made).__name__}",
            why="it has to give the model and the arguments of one call",
            fix="return (model, (x, y)), or (model, (x,), {'mask': mask})",
        )
    return made[0], made[1], made[2] if len(made) == 3 else {}
