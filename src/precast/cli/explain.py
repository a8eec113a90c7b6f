"""``precast explain``: what native code a model becomes, and where its time goes."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import precast
from precast.cli.examples import examples
from precast.cli.model_reference import Model, call_of, load_model
from precast.cli.progress import telling_steps
from precast.cli.shared_options import AsJson

if TYPE_CHECKING:
    from precast.report import Profile

app = typer.Typer(add_completion=False, rich_markup_mode="markdown")
EXAMPLES = examples(
    "precast explain model.py:make",
    "precast explain model.py:make --inference --profile --trace trace.json",
)


@app.command(epilog=EXAMPLES)
def explain(
    model: Annotated[str, typer.Argument(help="package.module:factory or file.py:factory.")],
    inference: Annotated[bool, typer.Option("--inference", help="Do not compute gradients.")] = False,
    profiled: Annotated[
        bool, typer.Option("--profile", help="Build and run the model, and show where the time goes.")
    ] = False,
    calls: Annotated[int, typer.Option(min=1, help="Number of calls for the profile.")] = 10,
    trace: Annotated[Path | None, typer.Option(help="Write a Chrome trace of the last call to this file.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show what a model is compiled to, and where the time goes.

    The factory returns (module, args), (module, args, kwargs) or (module, args, kwargs, dynamic_shapes).
    """
    import torch

    with telling_steps() as tell:
        tell(f"loading {model}")
        loaded = load_model(model)
        if profiled or trace is not None:
            tell(f"compiling, and running {calls} times")
            found = profile_of(loaded, calls=calls, train=not inference)
            if trace is not None:
                found.save_trace(trace)
            typer.echo(json.dumps(found.as_data(), indent=2) if as_json else str(found))
            return
        tell("compiling")
        with torch.set_grad_enabled(not inference):
            explanation = precast.explain(loaded.module, *loaded.args, **loaded.kwargs)
    typer.echo(json.dumps(explanation.as_data(), indent=2) if as_json else str(explanation))


def profile_of(model: Model, *, calls: int, train: bool) -> "Profile":
    """A profile of `calls` calls."""
    compiled = precast.compile(model.module, options={"profile": True})
    call = call_of(compiled, model, train=train)
    for _ in range(calls):
        call()
    return precast.profile(compiled)
