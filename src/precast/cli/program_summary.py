"""Summarizes an exported program."""

from pathlib import Path
from typing import Any

from precast.artifact.package import Package
from precast.export import ExportedProgram, load
from precast.export.load import program_in
from precast.graph.nodes import has_value, value_of
from precast.graph.opened_objects import result_names
from precast.graph.tensor_spec import describe


def program_text(package: Package) -> str:
    """The whole program as text; of several, each under the name of its entry."""
    entries = {entry.name: entry.program for entry in package.manifest.entries if entry.program is not None}
    if len(entries) < 2:
        return str(program_in(package))
    programs = {name: program_in(package, member=member) for name, member in entries.items()}
    return "\n\n".join(f"{name}:\n{program}" for name, program in programs.items())


def extra_file_text(file: Path, name: str) -> str:
    """The content of one of its extra files."""
    texts = {name: ""}
    load(file, extra_files=texts)
    return texts[name]


def summary_of(file: Path) -> dict[str, Any]:
    """A summary of the program."""
    return _summary(load(file))


def _summary(exported: ExportedProgram) -> dict[str, Any]:
    program = exported.program
    tensors = program.state.values()
    sizes, signature = program.sizes, exported.graph_signature
    taken = {node.name: node.meta.get("val") for node in program.placeholders}
    returned = {node.name: value_of(node) for node in exported.graph.nodes if has_value(node)}
    names = result_names(program.signature.out_tree)

    def described(name: str, value: object) -> str:
        return f"{name}: {sizes.in_words(describe(value))}"

    return {
        "dialect": exported.dialect,
        "nodes": sum(node.op == "call_function" for node in exported.graph.nodes),
        "ops": len({str(node.target) for node in exported.graph.nodes if node.op == "call_function"}),
        "parameters": len(signature.parameters),
        "buffers": len(signature.buffers),
        "constants": len(signature.lifted_tensor_constants),
        "state bytes": sum(tensor.numel() * tensor.element_size() for tensor in tensors),
        "inputs": [described(spec.arg.name, taken.get(spec.arg.name)) for spec in program.signature.inputs
                   if spec.target is None],
        "outputs": [described(name, returned.get(str(output), output))
                    for name, output in zip(names, signature.user_outputs, strict=True)],
        "mutates": sorted([*signature.buffers_to_mutate.values(), *signature.user_inputs_to_mutate.values()]),
        "sizes": sizes.ranges_text(),
    }  # fmt: skip
