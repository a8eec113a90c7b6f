"""``precast export``: a module to a file."""

import json
from pathlib import Path
from typing import Annotated

import typer

import precast
from precast.artifact.archive import check_folder
from precast.cli.examples import examples
from precast.cli.model_reference import load_model
from precast.cli.progress import counted, telling_steps
from precast.cli.shared_options import AsJson

app = typer.Typer(add_completion=False, rich_markup_mode="markdown")
EXAMPLES = examples(
    "precast export model.py:make -o program.pt2",
    "precast export model.py:make --decompose --loss 0",
)


@app.command(epilog=EXAMPLES)
def export(
    model: Annotated[str, typer.Argument(help="package.module:factory or file.py:factory.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The file to write.")] = Path("program.pt2"),
    decompose: Annotated[bool, typer.Option("--decompose", help="Decompose operators to the Core ATen set.")] = False,
    loss: Annotated[
        int | None, typer.Option("--loss", help="Add gradients of the output with this number, a scalar.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Export a model to a file.

    The factory returns (module, args), (module, args, kwargs) or (module, args, kwargs, dynamic_shapes).
    """
    check_folder(output)
    with telling_steps() as tell:
        tell(f"loading {model}")
        loaded = load_model(model)
        tell("exporting")
        exported = precast.export.export(
            loaded.module, loaded.args, loaded.kwargs, dynamic_shapes=loaded.dynamic_shapes
        )
        if decompose:
            exported = exported.run_decompositions(joint_loss_index=loss)
        elif loss is not None:
            exported = exported.to_joint(loss_index=loss)
        tell(f"saving {output}")
        precast.save(exported, output)
    nodes = sum(node.op == "call_function" for node in exported.graph.nodes)
    size = output.stat().st_size
    if as_json:
        typer.echo(json.dumps({"file": str(output), "bytes": size, "nodes": nodes, "dialect": exported.dialect}))
    else:
        typer.echo(f"{output}: {counted(nodes, 'node')}, {size:,} bytes, {exported.dialect}")
