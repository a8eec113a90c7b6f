"""``precast package``: a model to one file that runs without torch."""

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

import precast
from precast.artifact.archive import check_folder
from precast.artifact.package import open_package
from precast.cli.examples import examples
from precast.cli.model_reference import Model, call_factory, model_of
from precast.cli.progress import bytes_text, seconds_text, telling_steps
from precast.cli.shared_options import AsJson

app = typer.Typer(add_completion=False, rich_markup_mode="markdown")
EXAMPLES = examples(
    "precast package model.py:make -o model.precast",
    "precast package model.py:make --target x86-64-v3 --target native",
    "precast package model.py:make --target cuda:sm_90 --target native",
    "precast package program.pt2 --sign private.pem",
)


@app.command(epilog=EXAMPLES)
def package(
    model: Annotated[str, typer.Argument(help="package.module:factory, file.py:factory, or an exported program.pt2.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The file to write.")] = Path("model.precast"),
    targets: Annotated[
        list[str] | None,
        typer.Option(
            "--target",
            help="native, x86-64-v3, x86-64-v4, or a GPU such as cuda:sm_90; may be repeated. Default: native.",
        ),
    ] = None,
    samples: Annotated[bool, typer.Option(help="Store the example call and its results, for `precast verify`.")] = True,
    sign: Annotated[Path | None, typer.Option(help="PEM file of a private ed25519 key to sign with.")] = None,
    as_json: AsJson = False,
) -> None:
    """Package a model into one file that runs without torch.

    The factory returns (module, args), (module, args, kwargs), (module, args, kwargs, dynamic_shapes), or several
    entries over one set of weights: {"forward": (module, args), "eval": (module, args)}.
    """
    started = time.perf_counter()
    check_folder(output)
    with telling_steps() as tell:
        tell(f"loading {model}")
        what, arguments = what_to_package(model)
        tell("exporting, compiling and writing")
        path = precast.package(
            what, **arguments, path=output, targets=tuple(targets or ("native",)), samples=samples, sign=sign
        )
    seconds, size, manifest = time.perf_counter() - started, path.stat().st_size, open_package(path).manifest
    entries, made = [entry.name for entry in manifest.entries], [target.name for target in manifest.targets]
    if as_json:
        facts = {"file": str(path), "bytes": size, "entries": entries, "targets": made, "seconds": seconds}
        typer.echo(json.dumps(facts, indent=2))
    else:
        words = [bytes_text(size), f"entries {', '.join(entries)}", f"targets {', '.join(made)}"]
        typer.echo(f"{path}: {', '.join(words)}, in {seconds_text(seconds)}")


def what_to_package(reference: str) -> tuple[Any, dict[str, Any]]:
    """The first argument of ``precast.package``, and the others."""
    if reference.endswith(".pt2"):
        return precast.load(reference), {}
    made = call_factory(reference)
    if isinstance(made, Mapping):
        return made, {}
    model: Model = model_of(made, reference)
    return model.module, {"args": model.args, "kwargs": model.kwargs, "dynamic_shapes": model.dynamic_shapes}
