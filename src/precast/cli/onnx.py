"""``precast onnx``: a model of the user's to an ONNX file."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from precast.cli.examples import examples
from precast.cli.model_reference import load_model
from precast.cli.progress import telling_steps
from precast.onnx import ONNXProgram, export

app = typer.Typer(add_completion=False, rich_markup_mode="markdown")
EXAMPLES = examples(
    "precast onnx model.py:make -o model.onnx",
    "precast onnx model.py:make --opset 21 --external-data",
)


@app.command(epilog=EXAMPLES)
def onnx(
    model: Annotated[str, typer.Argument(help="package.module:factory or file.py:factory.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The file to write.")] = Path("model.onnx"),
    opset: Annotated[int | None, typer.Option(help="The opset; 20 if not given.")] = None,
    capture: Annotated[str, typer.Option(help="How to capture: aten or symbolic.")] = "aten",
    optimize: Annotated[bool, typer.Option(help="Recognize patterns and fold constants.")] = True,
    verify: Annotated[bool, typer.Option(help="Compare with the original in onnxruntime.")] = True,
    external_data: Annotated[bool, typer.Option("--external-data", help="Weights in a file of their own.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Write a model as an ONNX file.

    It tells how each operator was translated and what was checked. The factory returns (module, args),
    (module, args, kwargs) or (module, args, kwargs, dynamic_shapes).
    """
    with telling_steps() as tell:
        tell("loading the model")
        loaded = load_model(model)
        program = export(
            loaded.module,
            loaded.args,
            output,
            kwargs=loaded.kwargs,
            dynamic_shapes=loaded.dynamic_shapes,
            opset=opset,
            capture=capture,  # type: ignore[arg-type]  # export() itself says what is wrong with another word
            optimize=optimize,
            verify=verify,
            external_data=external_data or "auto",
            progress=tell,
        )
    if as_json:
        typer.echo(json.dumps(_as_data(program, output), indent=2))
    else:
        _print_summary(program, output)


def _as_data(program: ONNXProgram, output: Path) -> dict[str, Any]:
    summary = program.rule_summary()
    return {
        "file": str(output),
        "bytes": output.stat().st_size,
        "nodes": len(program.model.graph),
        "checked": list(program.verification.checked),
        "not_checked": list(program.verification.skipped),
        "operators": [{"operator": operator, "rule": rule, "count": count} for operator, rule, count in summary],
    }


def _print_summary(program: ONNXProgram, output: Path) -> None:
    table = Table("operator", "rule", "times", box=None, pad_edge=False)
    for operator, rule, count in program.rule_summary():
        table.add_row(operator, rule, str(count))
    Console().print(table)
    typer.echo(f"{output}: {len(program.model.graph)} nodes, {output.stat().st_size:,} bytes")
    typer.echo(str(program.verification))
