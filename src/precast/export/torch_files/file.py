"""Reads the archives that PyTorch's exporter writes: a program as JSON, tensors as bytes. Pickles are never read.

::

    model/models/model.json                         the graph, its signature, its trees
    model/data/weights/model_weights_config.json    state by name: which member, dtype, sizes, strides
    model/data/weights/weight_0                     the bytes of a storage
    model/data/constants/…                          the same for constants
    model/data/sample_inputs/model.pt               pickled: example inputs are not read
    model/extra/notes.txt                           extra files

Version log: format ``pt2``, schema 8.x, as torch 2.13 writes it.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from precast.artifact.archive import read_archive
from precast.artifact.expressions import check_expression, solve
from precast.artifact.schema import ANYTHING, Json, MapOf, Text, brief, check_shape, damaged, parse_json
from precast.artifact.weights import Weight
from precast.errors import ArtifactError
from precast.export.program import ExportedProgram, Origin
from precast.export.serialize import schema
from precast.export.serialize.graphs import GraphReader, Tables, module_records, modules_to_json
from precast.export.serialize.names import checked_path, target_to_json
from precast.export.serialize.signatures import module_call_from_json, signature_from_json
from precast.export.serialize.symbols import sizes_from_json
from precast.export.serialize.tensors import load_tensors
from precast.export.signature import Dialect
from precast.export.torch_files.bounds import Bounded
from precast.export.torch_files.convert import argument_names, size_record
from precast.export.torch_files.guards import guard_conditions
from precast.export.torch_files.nodes import DTYPES, GraphTranslator, device, integer, known
from precast.export.torch_files.retrace import retraced
from precast.export.torch_files.signatures import SignatureTranslator
from precast.export.verifier import graphs_of
from precast.graph.signature import InputKind

MAJOR = 8
_NAME = "model"
_OBJECT = MapOf(Text(r"(?s).{0,5000}"), ANYTHING, 10_000_000)


@dataclass(frozen=True)
class TorchFile:
    """An open archive of PyTorch's exporter, whose program is not yet read."""

    root: str
    members: Mapping[str, memoryview]
    content: Any

    @staticmethod
    def read(data: memoryview) -> "TorchFile":
        members = read_archive(data, is_torchs=True)
        root = next(name for name in members if name.endswith("/archive_format")).removesuffix("archive_format")
        _check_format(root, members)
        content: Any = _parsed(members, f"{root}models/{_NAME}.json")
        version = content.get("schema_version") or {}
        if not isinstance(version, dict) or version.get("major") != MAJOR:
            raise ArtifactError(
                f"the program has the schema version {brief(version)}",
                why=f"version {MAJOR} of PyTorch's format is read here, as torch 2.13 writes it",
                fix="load it with the torch that wrote it, and save it with torch 2.13",
            )
        return TorchFile(root, members, content)

    @property
    def opset(self) -> dict[str, int]:
        return dict(self.content.get("opset_version") or {})

    @property
    def extra_files(self) -> dict[str, str]:
        folder = f"{self.root}extra/"
        try:
            return {
                name.removeprefix(folder): bytes(content).decode()
                for name, content in self.members.items()
                if name.startswith(folder)
            }
        except UnicodeDecodeError as problem:
            raise damaged("an extra file is not text", str(problem)) from problem

    def program(self) -> ExportedProgram:
        """Load the program, over the file's memory."""
        module = self.content["graph_module"]
        translator = SignatureTranslator(module)
        tables = Tables()
        graph = GraphTranslator(module["graph"], tables, translator.constants)
        translated: Any = graph.translated()
        named = translator.translated(graph.names)
        check_shape(translated, schema.GRAPH_SHAPE, "the graph")
        check_shape(named, schema.SIGNATURE_SHAPE, "the signature")
        signature = signature_from_json(named)
        names = argument_names(
            translator.forward_names,
            signature.in_tree.children()[0].num_children,
            signature.in_tree.children()[1].context,
        )
        values = dict(translated["inputs"])
        users = [values[spec.arg.name] for spec in signature.inputs_of(InputKind.USER_INPUT)]
        guards = guard_conditions(self.content.get("guards_code") or (), names, signature.in_tree, users)
        sizes = sizes_from_json({"symbols": list(self._symbols(values)), "guards": guards})
        modules: Any = modules_to_json(tables.modules)
        calls = module_records(modules["modules"], modules["call_numbers"])
        reader = GraphReader(sizes, list(tables.stacks.rows), calls, may_write=True)
        with sizes.fakes.mode, sizes.shape_env.suppress_guards(), sizes.fakes.unrecorded():
            read = reader.read(translated)
        state, aliases = self._state({str(spec.target) for spec in signature.inputs if spec.target is not None})
        origin = Origin(
            argument_names=names,
            module_calls=tuple(map(module_call_from_json, translator.module_calls(graph.names))),
            aliases=tuple(aliases),
        )
        dialect = Dialect.TRAINING if "TRAINING" in (self.content.get("verifiers") or ()) else Dialect.ATEN
        with Bounded(nodes=sum(len(list(each.nodes)) for _, each in graphs_of(read))):
            exported = retraced(read, signature, state, sizes.sizes, origin, dialect)
        _check_targets(exported)
        return exported

    def _symbols(self, values: Mapping[str, Any]) -> Iterator[Json]:
        """The dynamic sizes of inputs, each at its first occurrence."""
        ranges = self.content.get("range_constraints") or {}
        examples = dict(_examples(self.content["graph_module"]["graph"]))
        seen: set[str] = set()
        for name, value in values.items():
            sizes = [value["SymInt"]] if isinstance(value, dict) and "SymInt" in value else []
            sizes = value[1] if isinstance(value, list) else sizes
            for dimension, size in enumerate(sizes):
                for symbol in sorted(_symbols_in(size) - seen):
                    seen.add(symbol)
                    bounds = ranges.get(symbol) or {}
                    if symbol not in examples:
                        raise damaged(f"the size {symbol[:80]!r} has no example", "sizes of inputs have one")
                    place = f"{name}.shape[{dimension}]" if isinstance(value, list) else name
                    allowed = [bounds.get("min_val") or 0, bounds.get("max_val")]
                    yield size_record(symbol, place, allowed, examples[symbol])

    def _state(self, wanted: set[str]) -> tuple[dict[str, torch.Tensor], list[tuple[str, str]]]:
        """Parameters, buffers and constants by name, and further names of tied ones."""
        table: dict[str, Json] = {}
        storages: dict[str, Weight] = {}
        for folder in (schema.STATE, schema.CONSTANTS):
            path = f"{self.root}data/{folder}/"
            config: Any = _parsed(self.members, f"{path}{_NAME}_{folder}_config.json")["config"]
            for name, record in config.items():
                if record["use_pickle"] or record["tensor_meta"] is None:
                    raise _needs_pickle(name)
                member = f"{path}{record['path_name']}"
                if member not in self.members:
                    raise damaged(f"{name[:80]} is stored in {member[:80]!r}", "the file holds no such member")
                storages[member] = Weight("u8", np.frombuffer(self.members[member], np.uint8))
                table[f"{schema.STATE}/{checked_path(name)}"] = _tensor_record(f"{schema.STATE}/{member}", record)
        check_shape(table, MapOf(Text(r"[^\x00-\x1f]{0,5000}"), schema.TENSOR_SHAPE, 10_000_000), "the tensors")
        tensors = load_tensors(table, {schema.STATE: storages})[schema.STATE]
        first = {id(tensors[name]): name for name in tensors if name in wanted}
        others = [(name, first[id(tensor)]) for name, tensor in tensors.items() if id(tensor) in first]
        aliases = [(alias, name) for alias, name in others if alias not in wanted]
        return {name: tensor for name, tensor in tensors.items() if name in wanted}, aliases


def _check_format(root: str, members: Mapping[str, memoryview]) -> None:
    written = bytes(members[f"{root}archive_format"][:20])
    order = bytes(members.get(f"{root}byteorder", memoryview(b"little"))[:20])
    if written != b"pt2" or order != b"little" or f"{root}models/{_NAME}.json" not in members:
        models = [name.removeprefix(root) for name in members if name.startswith(f"{root}models/")]
        raise ArtifactError(
            f"the archive of torch holds {', '.join(models[:5]) or 'no program'}",
            why=f"what is read here is a 'pt2' archive with models/{_NAME}.json, in little-endian order",
            fix="save the program alone, with torch.export.save",
        )


def _parsed(members: Mapping[str, memoryview], name: str) -> Any:
    if name not in members or len(members[name]) > schema.MAX_PROGRAM:
        raise damaged(f"{name} is missing or too large", f"at most {schema.MAX_PROGRAM} bytes are allowed")
    return parse_json(bytes(members[name]), _OBJECT, name=name)


def _needs_pickle(name: str) -> ArtifactError:
    return ArtifactError(
        f"{name[:200]} is stored by pickle",
        why="tensor subclasses and script objects are; reading pickle can run code, and is never done here",
        fix="turn it into plain tensors before exporting, or export the module with precast.export",
    )


def _tensor_record(storage: str, record: Any) -> Json:
    meta = record["tensor_meta"]
    return {
        "storage": storage,
        "dtype": known(DTYPES, meta["dtype"], "dtype"),
        "shape": [integer(size) for size in meta["sizes"]],
        "strides": [integer(stride) for stride in meta["strides"]],
        "offset": integer(meta["storage_offset"]),
        "parameter": bool(record["is_param"]),
        "requires_grad": bool(meta["requires_grad"]),
        "conjugate": False,
        "device": device(meta["device"]),
    }


def _examples(graph: Any) -> Iterator[tuple[str, int]]:
    """The example value of every symbol, from sizes that are linear in one symbol."""
    metas = [size for meta in graph["tensor_values"].values() for size in meta["sizes"]]
    for size in (*metas, *graph["sym_int_values"].values()):
        expression = size.get("as_expr")
        hint = ((expression or {}).get("hint") or {}).get("as_int")
        content = integer(size) if expression else None
        symbols = sorted(_symbols_in(content))
        if isinstance(hint, int) and len(symbols) == 1:
            check_expression(content, symbols)
            if (found := solve(content, symbols[0], hint, {})) is not None:
                yield symbols[0], found


def _symbols_in(content: Json) -> set[str]:
    if isinstance(content, list):
        return set().union(*map(_symbols_in, content[1:] if content[:1] != ["Float"] else ()))
    return {content} if isinstance(content, str) else set()


def _check_targets(exported: ExportedProgram) -> None:
    """Check that the retraced graph calls only operators that files may call."""
    for _, graph in graphs_of(exported.graph_module):
        for node in graph.nodes:
            if node.op == "call_function":
                target_to_json(node.target)
