"""Translates graphs of PyTorch's files to our form. Only inputs carry values: the graph is retraced afterwards.

Before: ``{"target": "torch.ops.aten.topk.default", "inputs": […], "outputs": [{"as_tensor": {"name": "getitem"}}, …]}``
After:  ``["topk", "aten.topk.default", ["x", 2]]`` and ``["getitem", "operator.getitem", ["topk", 0]]``
"""

from collections.abc import Iterator, Mapping
from typing import Any

from torch import fx

from precast.artifact.schema import Json, brief, damaged
from precast.errors import ArtifactError
from precast.export.serialize.graphs import MAX_DEPTH, Tables, module_record
from precast.export.torch_files.texts import expression_from_text

DTYPES = {
    1: "uint8", 2: "int8", 3: "int16", 4: "int32", 5: "int64", 6: "float16", 7: "float32", 8: "float64",
    9: "complex32", 10: "complex64", 11: "complex128", 12: "bool", 13: "bfloat16", 28: "uint16", 29: "float8_e4m3fn",
    30: "float8_e5m2", 31: "float8_e4m3fnuz", 32: "float8_e5m2fnuz", 33: "float8_e8m0fnu", 34: "uint32", 35: "uint64",
}  # fmt: skip
_LAYOUTS = {1: "sparse_coo", 2: "sparse_csr", 3: "sparse_csc", 4: "sparse_bsr", 5: "sparse_bsc", 7: "strided"}
_STRIDED = 7
_FORMATS = {1: "contiguous_format", 2: "channels_last", 3: "channels_last_3d", 4: "preserve_format"}
_FLOATS = {"Infinity": "inf", "-Infinity": "-inf", "NaN": "nan"}
_NAMED = ("as_tensor", "as_sym_int", "as_sym_float", "as_sym_bool")
_PLAIN_LISTS = ("as_ints", "as_bools", "as_int_lists")
_KEYWORD = 2


def union(content: Any) -> tuple[str, Any]:
    """The tag and the content of a tagged union."""
    if not isinstance(content, dict) or len(content) != 1:
        raise damaged("a value is not of one kind", f"it is {brief(content)}")
    ((tag, inside),) = content.items()
    return tag, inside


def known(table: Mapping[int, str], number: Any, what: str) -> str:
    """The name of an enumeration's number."""
    if not isinstance(number, int) or number not in table:
        raise damaged(f"the {what} {brief(number)} is unknown", "no such number is known")
    return table[number]


def integer(content: Any) -> Json:
    """A size: a number, or an expression."""
    tag, inside = union(content)
    if tag == "as_int" and isinstance(inside, int) and not isinstance(inside, bool):
        return inside
    if tag == "as_expr":
        return expression_from_text(inside["expr_str"])
    raise damaged("a size is malformed", f"it is {brief(content)}")


def device(content: Any) -> str:
    kind, index = content["type"], content.get("index")
    return f"{kind}" if index is None else f"{kind}:{index}"


def tensor_value(meta: Any) -> Json:
    """The value of a tensor in the form of our files."""
    if meta["layout"] != _STRIDED:
        raise ArtifactError(
            f"the program has a tensor of the layout {_LAYOUTS.get(meta['layout'], meta['layout'])}",
            why="programs here have strided tensors",
            fix="convert it with to_dense() in the program, and export it again",
        )
    shape, strides = ([integer(size) for size in meta[part]] for part in ("sizes", "strides"))
    return [known(DTYPES, meta["dtype"], "dtype"), shape, strides, bool(meta["requires_grad"]), device(meta["device"])]


def name_of(content: Any) -> str:
    """The name of a value that is referred to by name."""
    tag, inside = union(content)
    name = inside.get("name" if tag == "as_tensor" else "as_name") if tag in _NAMED else None
    if not isinstance(name, str):
        raise damaged("a value has no name", f"it is {brief(content)}")
    return name


def number(content: Any) -> Json:
    """A float, possibly one that JSON cannot represent."""
    return {"float": _FLOATS[content]} if isinstance(content, str) and content in _FLOATS else content


class GraphTranslator:
    """One graph of a file; ``constants`` are the names of inputs that are Python values, by position."""

    def __init__(self, content: Any, tables: Tables, constants: Mapping[int, str], depth: int = 0) -> None:
        if depth > MAX_DEPTH:
            raise damaged("control flow is nested too deeply", f"more than {MAX_DEPTH} levels")
        self._content, self._tables, self._depth = content, tables, depth
        self._constants = constants
        self._fresh = fx.Graph()._graph_namespace
        self.names: dict[str, str] = {}
        self._records: list[Json] = []
        self._subgraphs: dict[str, Json] = {}
        self._read: dict[str, str] = {}

    def translated(self) -> Json:
        inputs = [self._input(position, each) for position, each in enumerate(self._content["inputs"])]
        for node in self._content["nodes"]:
            self._node(node)
        outputs = [self._argument(each) for each in self._content["outputs"]]
        is_single = self._content.get("is_single_tensor_return") and len(outputs) == 1
        return {
            "inputs": inputs,
            "nodes": self._records,
            "outputs": outputs[0] if is_single else {"tuple": outputs},
            "subgraphs": self._subgraphs,
        }

    def _named(self, name: str) -> str:
        """A name for a new node that fx accepts unchanged."""
        if name in self.names:
            raise damaged(f"two nodes are called {name[:80]!r}", "names of nodes must differ")
        self.names[name] = self._fresh.create_name(name, None)
        return self.names[name]

    def _input(self, position: int, content: Any) -> Json:
        tag, _ = union(content)
        if tag == "as_custom_obj":
            raise ArtifactError(
                f"the program takes an object, {brief(content)}",
                why="script objects are stored by pickle, which is never read here",
                fix="export the module with precast.export, with what the object holds as tensors",
            )
        if tag not in _NAMED:
            name = self._constants.get(position, f"constant_{position}")
            return [self._named(name), {"constant": self._argument(content)}]
        name = name_of(content)
        if tag == "as_tensor":
            return [self._named(name), tensor_value(self._content["tensor_values"][name])]
        kind = {"as_sym_int": "SymInt", "as_sym_float": "SymFloat", "as_sym_bool": "SymBool"}[tag]
        values = self._content[f"{tag.removeprefix('as_')}_values"]
        return [self._named(name), {kind: integer(values[name])}]

    def _node(self, node: Any) -> None:
        outputs = node["outputs"]
        kinds = [union(output)[0] for output in outputs]
        is_one = len(kinds) == 1 and kinds[0] in _NAMED and node.get("is_hop_single_tensor_return") is not False
        made = name_of(outputs[0]) if is_one else None
        args = [self._argument(each["arg"]) for each in node["inputs"] if each.get("kind") != _KEYWORD]
        keywords = [each for each in node["inputs"] if each.get("kind") == _KEYWORD]
        name = self._named(made or f"{node.get('name') or 'node'}@{len(self._records)}")
        self._record(node, name, target(node["target"]), args, {k["name"]: self._argument(k["arg"]) for k in keywords})
        if made is None:
            self._items(node, name, union(outputs[0])[1] if kinds == ["as_tensors"] else outputs)

    def _items(self, node: Any, whole: str, values: Any) -> None:
        """A node for every named item of a result."""
        for position, value in enumerate(values):
            tag, inside = ("as_tensor", value) if "name" in value else union(value)
            if tag in _NAMED:
                name = self._named(inside["name"] if tag == "as_tensor" else name_of(value))
                self._record(node, name, "operator.getitem", [whole, position], {})
            elif tag == "as_tensors":
                name = self._named(f"{whole}@{position}")
                self._record(node, name, "operator.getitem", [whole, position], {})
                self._items(node, name, inside)

    def _record(self, node: Any, name: str, called: str, args: list[Json], kwargs: dict[str, Json]) -> None:
        metadata = node.get("metadata") or {}
        modules: list[Json] = [self._tables.modules.number(text) for text in _module_stack(metadata)]
        stack = self._tables.stacks.number(metadata.get("stack_trace"))
        self._records.append([name, called, args, kwargs or None, None, stack, modules or None])

    def _argument(self, content: Any) -> Json:
        tag, inside = union(content)
        match tag:
            case "as_none":
                return None
            case "as_tensor" | "as_sym_int" | "as_sym_float" | "as_sym_bool":
                return self._reference(tag, inside)
            case "as_int" | "as_bool":
                return inside  # type: ignore[no-any-return]
            case "as_float":
                return number(inside)
            case "as_string":
                return {"str": inside}
            case "as_scalar_type":
                return {"dtype": known(DTYPES, inside, "dtype")}
            case "as_layout":
                return {"layout": known(_LAYOUTS, inside, "layout")}
            case "as_memory_format":
                return {"format": known(_FORMATS, inside, "memory format")}
            case "as_device":
                return {"device": device(inside)}
            case "as_complex":
                return {"complex": [float(inside["real"]).hex(), float(inside["imag"]).hex()]}
            case "as_operator":
                return {"operator": target(inside)}
            case "as_graph":
                return self._subgraph(inside["name"], inside["graph"])
            case "as_string_to_argument":
                return {"dict": [[{"str": key}, self._argument(each)] for key, each in inside.items()]}
            case "as_optional_tensor":
                return self._argument(inside)
        return self._list(tag, inside)

    def _list(self, tag: str, inside: Any) -> Json:
        if not isinstance(inside, list):
            raise damaged(f"an argument is {brief(inside)}", f"its kind is {tag[:80]!r}")
        match tag:
            case "as_tensors":
                return [self._reference("as_tensor", each) for each in inside]
            case "as_nested_tensors":
                return [self._list("as_tensors", each) for each in inside]
            case "as_optional_tensors":
                return [self._argument(each) for each in inside]
            case "as_sym_ints" | "as_sym_floats" | "as_sym_bools":
                return [self._reference(tag.removesuffix("s"), each) for each in inside]
            case "as_floats":
                return [number(each) for each in inside]
            case "as_float_lists":
                return [[number(each) for each in row] for row in inside]
            case "as_strings":
                return [{"str": each} for each in inside]
        if tag in _PLAIN_LISTS:
            return inside
        raise ArtifactError(
            f"the program has an argument of the kind {tag[:80]!r}",
            why="script objects are stored by pickle, which is never read here; other kinds are unknown",
            fix="export the module with precast.export",
        )

    def _reference(self, tag: str, inside: Any) -> Json:
        name = inside.get("name") if tag == "as_tensor" else inside.get("as_name")
        if name is None and tag != "as_tensor" and len(inside) == 1:
            return number(next(iter(inside.values())))
        if name not in self.names:
            raise damaged(f"a node reads {brief(name)!r}", "no earlier node has that name")
        return self.names[name]

    def _subgraph(self, name: str, content: Any) -> Json:
        """The node that reads a subgraph of control flow; several operators may run the same one."""
        inner = GraphTranslator(content, self._tables, {}, self._depth + 1).translated()
        if name in self._subgraphs and self._subgraphs[name] != inner:
            raise damaged(f"two graphs are called {name[:80]!r}", "names of graphs must differ")
        if name not in self._subgraphs:
            self._subgraphs[name] = inner
            self._read[name] = self._named(f"{name}@graph")
            self._records.append([self._read[name], {"graph": name}])
        return self._read[name]


def target(name: Any) -> str:
    """``torch.ops.aten.add.Tensor`` as ``aten.add.Tensor``; Python's functions by their own names."""
    if not isinstance(name, str):
        raise damaged("a node calls something that has no name", f"it is {brief(name)}")
    return name.removeprefix("_") if name.startswith("_operator.") else name.removeprefix("torch.ops.")


def _module_stack(metadata: Mapping[str, str]) -> Iterator[str]:
    for entry in filter(None, metadata.get("nn_module_stack", "").split(";")):
        key, *path, kind = entry.split(",")
        if kind != "_empty_nn_module_stack_from_metadata_hook":
            yield module_record(key, ",".join(path), kind)
