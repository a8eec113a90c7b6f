"""``precast compile``: a model to one shared library for this machine."""

import json
import time
from pathlib import Path
from typing import Annotated

import typer

import precast
from precast.artifact.archive import check_folder
from precast.cli.examples import examples
from precast.cli.model_reference import load_model
from precast.cli.progress import bytes_text, seconds_text, telling_steps
from precast.cli.shared_options import AsJson

app = typer.Typer(add_completion=False, rich_markup_mode="markdown")
EXAMPLES = examples(
    "precast compile model.py:make",
    "precast compile model.py:make -o build/libnet.so",
)


@app.command(epilog=EXAMPLES)
def compile(
    model: Annotated[str, typer.Argument(help="package.module:factory or file.py:factory.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The library to write; by default libNAME.so for NAME.py.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Compile a model to a shared library for this machine.

    The library contains code and weights. Call it from C and C++ through precast.h, or from Python with
    precast.runtime.aot_load. For other machines, and to share models, use `precast package`.
    """
    started = time.perf_counter()
    output = output or default_output(model)
    check_folder(output)
    if output.with_suffix(".py").exists():
        typer.echo(
            f"note: beside {output}, `import {output.stem}` will find the library instead of the module", err=True
        )
    with telling_steps() as tell:
        tell(f"loading {model}")
        loaded = load_model(model)
        tell("exporting and compiling")
        path = Path(
            precast.aot_compile(
                loaded.module,
                loaded.args,
                loaded.kwargs,
                dynamic_shapes=loaded.dynamic_shapes,
                options={"output_path": output},
            )
        )
    size, seconds = path.stat().st_size, time.perf_counter() - started
    if as_json:
        typer.echo(json.dumps({"file": str(path), "bytes": size, "seconds": seconds}, indent=2))
    else:
        typer.echo(f"{output}: {bytes_text(size)}, in {seconds_text(seconds)}")


def default_output(reference: str) -> Path:
    """``libmodel.so`` for ``model.py:make``: without ``lib``, Python would import the library as the module ``model``.

    >>> str(default_output("models/net.py:make")), str(default_output("package.net:make"))
    ('libnet.so', 'libnet.so')
    """
    place = reference.rpartition(":")[0]
    return Path(f"lib{Path(place).stem if place.endswith('.py') else place.rpartition('.')[2]}.so")
