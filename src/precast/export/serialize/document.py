"""A whole exported program as one JSON document and a set of storages."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _pytree as pytree

from precast._torch_compat import example_sizes
from precast._version import __version__
from precast.artifact.schema import Json, damaged
from precast.artifact.weights import Weight
from precast.export.program import ExportedProgram, Origin
from precast.export.serialize import schema
from precast.export.serialize.constants import constant_from_json, constant_to_json
from precast.export.serialize.graphs import GraphReader, Tables, graph_to_json, module_records, modules_to_json
from precast.export.serialize.names import checked_path, writable_path
from precast.export.serialize.notes import notes_to_json, read_notes
from precast.export.serialize.signatures import (
    module_call_from_json,
    module_call_to_json,
    signature_from_json,
    signature_to_json,
    with_kinds_of_numbers,
)
from precast.export.serialize.symbols import sizes_from_json, sizes_to_json
from precast.export.serialize.tensors import load_tensors, store_tensors
from precast.export.serialize.trees import tree_from_json, tree_to_json
from precast.export.signature import Dialect
from precast.export.sizes import values_of
from precast.graph.boundary import BoundaryFacts, InputFacts, OutputFacts
from precast.graph.module_arguments import with_module_arguments
from precast.graph.opened_objects import opened
from precast.graph.program import Program
from precast.graph.signature import Signature

DEFAULT_OPSET = {"aten": 1}


@dataclass(frozen=True)
class Document:
    """The content of ``program.json``, and the storages that it refers to, by member."""

    content: dict[str, Json]
    members: dict[str, dict[str, Weight]]


def to_document(exported: ExportedProgram, *, opset: Mapping[str, int] | None = None) -> Document:
    """Serialize a whole program."""
    program, origin = exported.program, exported.origin
    examples = _example_leaves(origin)
    stored = store_tensors(
        {
            schema.STATE: {writable_path(name): tensor for name, tensor in exported.state_dict.items()},
            schema.CONSTANTS: {writable_path(name): tensor for name, tensor in exported.constants.items()},
            schema.EXAMPLES: {str(i): leaf for i, leaf in enumerate(examples or []) if isinstance(leaf, torch.Tensor)},
        }
    )
    tables = Tables()
    graph = graph_to_json(program.module, tables)
    assert program.boundary is not None, "exported programs are functional"
    content: dict[str, Json] = {
        "format": schema.FORMAT,
        "version": [schema.MAJOR, schema.MINOR],
        "made_with": {"precast": __version__, "torch": str(torch.__version__)},
        "opset": dict(opset or DEFAULT_OPSET),
        "dialect": exported.dialect,
        **sizes_to_json(program.sizes, _hints(program)),
        "float_symbols": list(_float_symbols(program)),
        "graph": graph,
        "stacks": list(tables.stacks.rows),
        **modules_to_json(tables.modules),
        "notes": notes_to_json(program.module),
        "signature": signature_to_json(program.signature),
        "updates": list(program.boundary.updated),
        "argument_names": list(origin.argument_names),
        "module_calls": [module_call_to_json(entry) for entry in origin.module_calls],
        "aliases": [[writable_path(alias), writable_path(name)] for alias, name in origin.aliases],
        "example_inputs": _examples_to_json(origin, examples),
        "tensors": stored.table,
    }
    members = {name: weights for name, weights in stored.members.items() if weights}
    return Document(content, members)


def _float_symbols(program: Program) -> list[str]:
    """The symbols of data-dependent floats."""
    values = [value for _, value in values_of(program.module) if isinstance(value, torch.SymFloat | torch.SymBool)]
    return sorted({str(s) for value in values for s in value.node.expr.free_symbols if not s.is_integer})


def _hints(program: Program) -> dict[str, int]:
    """The example value of every symbol that is a size of an input."""
    values = (node.meta.get("val") for node in program.graph.nodes)
    mode = next((value.fake_mode for value in values if isinstance(value, FakeTensor)), None)
    if mode is None or mode.shape_env is None:
        return {}
    examples = example_sizes(mode.shape_env)
    symbols = [symbol.symbol for symbol in program.sizes.symbols]
    return {str(symbol.name): int(examples[symbol]) for symbol in symbols if symbol in examples}


def _example_leaves(origin: Origin) -> list[Any] | None:
    return (
        None
        if origin.example_inputs is None
        else pytree.tree_leaves(opened(with_module_arguments(origin.example_inputs)))
    )


def _examples_to_json(origin: Origin, leaves: list[Any] | None) -> Json:
    if leaves is None:
        return None
    numbers = {id(leaf): str(i) for i, leaf in reversed(list(enumerate(leaves))) if isinstance(leaf, torch.Tensor)}
    return {
        "tree": tree_to_json(pytree.tree_structure(opened(with_module_arguments(origin.example_inputs)))),
        "leaves": [numbers[id(leaf)] if isinstance(leaf, torch.Tensor) else constant_to_json(leaf) for leaf in leaves],
    }


def from_document(content: Any, members: Mapping[str, Mapping[str, Weight]]) -> ExportedProgram:
    """Restore the program, over the memory of the storages. ``content`` matches the schema."""
    sizes = sizes_from_json(content)
    signature = signature_from_json(content["signature"])
    tensors = load_tensors(content["tensors"], {name: members.get(name, {}) for name in schema.TENSOR_MEMBERS})
    reader = GraphReader(sizes, content["stacks"], module_records(content["modules"], content["call_numbers"]))
    with sizes.fakes.mode, sizes.shape_env.suppress_guards(), sizes.fakes.unrecorded():
        module = reader.read(content["graph"])
    read_notes(content["notes"], module)
    signature = with_kinds_of_numbers(signature, {node.name: node.meta.get("val") for node in module.graph.nodes})
    aliases = tuple((checked_path(alias), checked_path(name)) for alias, name in content["aliases"])
    state = tensors[schema.STATE] | tensors[schema.CONSTANTS]
    program = Program(
        module=module,
        signature=signature,
        state={name: tensor for name, tensor in state.items() if name not in dict(aliases)},
        sizes=sizes.sizes,
        boundary=_boundary(signature, content["updates"]),
    )
    origin = Origin(
        argument_names=tuple(content["argument_names"]),
        module_calls=tuple(map(module_call_from_json, content["module_calls"])),
        aliases=aliases,
        example_inputs=_examples_from_json(content["example_inputs"], tensors[schema.EXAMPLES]),
    )
    return ExportedProgram(program, origin, dialect=Dialect(content["dialect"]))


def _boundary(signature: Signature, updates: list[int]) -> BoundaryFacts:
    inputs = [InputFacts() for _ in signature.inputs]
    for number in updates:
        if number >= len(inputs):
            raise damaged(f"the program updates input {number}", f"it has {len(inputs)}")
        inputs[number] = InputFacts(mutates_data=True)
    return BoundaryFacts(tuple(inputs), tuple(OutputFacts() for _ in signature.outputs[len(updates) :]))


def _examples_from_json(content: Any, tensors: Mapping[str, torch.Tensor]) -> Any:
    if content is None:
        return None

    def resolve(name: str) -> torch.Tensor:
        if name not in tensors:
            raise damaged(f"the example input {name!r} is missing", "the file holds no such tensor")
        return tensors[name]

    leaves = [constant_from_json(leaf, resolve) for leaf in content["leaves"]]
    tree = tree_from_json(content["tree"])
    if tree.num_leaves != len(leaves):
        raise damaged("the example inputs do not fit their tree", f"{len(leaves)} for {tree.num_leaves} leaves")
    return pytree.tree_unflatten(leaves, tree)
