"""What an exported program holds."""

from pathlib import Path
from typing import Any

from precast.artifact.package import Package
from precast.export import ExportedProgram, load
from precast.export.load import program_in
from precast.graph.tensor_spec import describe


def program_text(package: Package) -> str:
    """The whole program as text; of several, each under the name of its entry."""
    entries = {entry.name: entry.program for entry in package.manifest.entries if entry.program is not None}
    if len(entries) < 2:
        return str(program_in(package))
    programs = {name: program_in(package, member=member) for name, member in entries.items()}
    return "\n\n".join(f"{name}:\n{program}" for name, program in programs.items())


def extra_file_text(file: Path, name: str) -> str:
    """What an extra file in it says."""
    texts = {name: ""}
    load(file, extra_files=texts)
    return texts[name]


def summary_of(file: Path) -> dict[str, Any]:
    """The program in short."""
    return _summary(load(file))


def _summary(exported: ExportedProgram) -> dict[str, Any]:
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
    }  # fmt: skip


def _described(name: str, value: object) -> str:
    return f"{name}: {describe(value)}"
