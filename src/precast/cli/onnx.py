"""``precast onnx``: writes a model as an ONNX file."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

import precast
from precast.artifact.archive import check_folder
from precast.cli.examples import examples
from precast.cli.model_reference import load_model
from precast.cli.progress import counted, telling_steps
from precast.cli.shared_options import AsJson
from precast.cli.tables import print_table

if TYPE_CHECKING:
    from precast.onnx import ONNXProgram

app = typer.Typer(add_completion=False, rich_markup_mode="markdown")
EXAMPLES = examples(
    "precast onnx model.py:make -o model.onnx",
    "precast onnx model.py:make --opset 21 --external-data",
)


@app.command(epilog=EXAMPLES)
def onnx(
    model: Annotated[str, typer.Argument(help="package.module:factory or file.py:factory.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The file to write.")] = Path("model.onnx"),
    opset: Annotated[int | None, typer.Option(help="The opset version; by default 20.")] = None,
    capture: Annotated[str, typer.Option(help="Capture mode: aten or symbolic.")] = "aten",
    optimize: Annotated[bool, typer.Option(help="Fold constants and fuse patterns.")] = True,
    verify: Annotated[bool, typer.Option(help="Run in onnxruntime and compare with the original.")] = True,
    external_data: Annotated[bool, typer.Option("--external-data", help="Store weights in a separate file.")] = False,
    as_json: AsJson = False,
) -> None:
    """Export a model to ONNX.

    Prints how each operator was translated and what was verified. The factory returns (module, args),
    (module, args, kwargs) or (module, args, kwargs, dynamic_shapes).
    """
    check_folder(output)
    with telling_steps() as tell:
        tell("loading the model")
        loaded = load_model(model)
        program = precast.onnx.export(
            loaded.module,
            loaded.args,
            output,
            kwargs=loaded.kwargs,
            dynamic_shapes=loaded.dynamic_shapes,
            opset=opset,
            capture=capture,  # type: ignore[arg-type]  # export() itself reports invalid values
            optimize=optimize,
            verify=verify,
            external_data=external_data or "auto",
            progress=tell,
        )
    if as_json:
        typer.echo(json.dumps(_as_data(program, output), indent=2))
    else:
        _print_summary(program, output)


def _as_data(program: "ONNXProgram", output: Path) -> dict[str, Any]:
    summary = program.rule_summary()
    return {
        "file": str(output),
        "bytes": output.stat().st_size,
        "nodes": len(program.model.graph),
        "checked": list(program.verification.checked),
        "not_checked": list(program.verification.skipped),
        "operators": [{"operator": operator, "rule": rule, "count": count} for operator, rule, count in summary],
    }


def _print_summary(program: "ONNXProgram", output: Path) -> None:
    table = Table("operator", "rule", "times", box=None, pad_edge=False)
    for operator, rule, count in program.rule_summary():
        table.add_row(operator, rule, str(count))
    print_table(table)
    typer.echo(f"{output}: {counted(len(program.model.graph), 'node')}, {output.stat().st_size:,} bytes")
    typer.echo(str(program.verification))
