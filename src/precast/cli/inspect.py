"""``precast inspect``: what is in an exported file."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from precast.export import ExportedProgram, load
from precast.ir.tensor_spec import describe

app = typer.Typer(add_completion=False)


@app.command()
def inspect(
    file: Annotated[Path, typer.Argument(help="A file written by `precast export` or `precast.export.save`.")],
    graph: Annotated[bool, typer.Option("--graph", help="Print the whole program.")] = False,
    extra_file: Annotated[str | None, typer.Option("--extra-file", help="Print this extra file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show what is in an exported file. Everything in it is checked; nothing of it is run."""
    texts: dict[str, str] = {} if extra_file is None else {extra_file: ""}
    exported = load(file, extra_files=texts)
    if extra_file is not None:
        typer.echo(texts[extra_file])
    elif graph:
        typer.echo(str(exported))
    elif as_json:
        typer.echo(json.dumps(_summary(exported, sorted(texts)), indent=2))
    else:
        Console().print(_as_table(_summary(exported, sorted(texts))))


def _summary(exported: ExportedProgram, extra_files: list[str]) -> dict[str, Any]:
    program = exported.program
    tensors = program.state.values()
    values = {node.name: node.meta.get("val") for node in program.placeholders}
    signature = exported.graph_signature
    return {
        "dialect": exported.dialect,
        "nodes": sum(node.op == "call_function" for node in exported.graph.nodes),
        "ops": len({str(node.target) for node in exported.graph.nodes if node.op == "call_function"}),
        "parameters": len(signature.parameters),
        "buffers": len(signature.buffers),
        "constants": len(signature.lifted_tensor_constants),
        "state bytes": sum(tensor.numel() * tensor.element_size() for tensor in tensors),
        "inputs": [_described(spec.arg.name, values.get(spec.arg.name)) for spec in program.signature.inputs
                   if spec.target is None],
        "outputs": [str(output) for output in signature.user_outputs],
        "mutates": sorted([*signature.buffers_to_mutate.values(), *signature.user_inputs_to_mutate.values()]),
        "sizes": [f"{s.symbol} = {s.name} in {s.range}" for s in program.sizes.symbols],
        "extra files": extra_files,
    }  # fmt: skip


def _described(name: str, value: object) -> str:
    return f"{name}: {describe(value)}"


def _as_table(summary: dict[str, Any]) -> Table:
    table = Table(show_header=False, box=None, pad_edge=False)
    for key, value in summary.items():
        text = "\n".join(value) if isinstance(value, list) else f"{value:,}" if isinstance(value, int) else str(value)
        table.add_row(key, Text(text or "-"))
    return table
