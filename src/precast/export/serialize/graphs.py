"""Graphs as JSON. Names, lines and modules that many nodes share are stored once, in tables.

A node is ``[name, target, args, kwargs, value, stack, modules]``; empty elements at the end are omitted.

The traced values of nodes are stored as dtype, sizes, strides and device of tensors; expressions of symbolic numbers.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from keyword import iskeyword
from typing import Any

import torch
from torch import fx

from precast.artifact.schema import Json, damaged
from precast.errors import ExportError
from precast.export.serialize.constants import constant_from_json, constant_to_json
from precast.export.serialize.names import checked_path, target_from_json, target_to_json, writable_path
from precast.export.serialize.symbols import LoadedSizes
from precast.graph.expressions import expression_to_json
from precast.graph.nodes import has_value, set_module_stack, set_value, value_of
from precast.graph.tensor_spec import TensorSpec

MAX_RANK = 64


def value_to_json(value: object) -> Json:
    """A tensor as ``[dtype, shape, strides]``, with device and requires_grad if they are not the defaults."""
    if isinstance(value, torch.Tensor):
        if value.layout is not torch.strided:
            raise ExportError(
                f"A tensor in the graph has the layout {value.layout}.",
                why="a program's file describes strided tensors",
                fix="Convert it with to_dense() in the program.",
            )
        return _tensor_to_json(TensorSpec.of(value))
    if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return {type(value).__name__: expression_to_json(value.node.expr)}
    if isinstance(value, (tuple, list)):
        return {"list" if isinstance(value, list) else "tuple": [value_to_json(item) for item in value]}
    return {"constant": constant_to_json(value)}


def _tensor_to_json(spec: TensorSpec) -> Json:
    assert spec.strides is not None, "strided tensors have strides"
    record: list[Json] = [
        str(spec.dtype).removeprefix("torch."),
        [expression_to_json(size) for size in spec.shape],
        [expression_to_json(stride) for stride in spec.strides],
    ]
    if spec.requires_grad or spec.device.type != "cpu":
        record.append(spec.requires_grad)
    if spec.device.type != "cpu":
        record.append(str(spec.device))
    return record


def value_from_json(content: Json, sizes: LoadedSizes, depth: int = 0) -> Any:
    """A fake value equal to the traced one. Must run under the fake mode of ``sizes``."""
    if isinstance(content, list):
        return _tensor_from_json(content, sizes)
    if not isinstance(content, dict) or len(content) != 1 or depth > 10:
        raise damaged("the value of a node is malformed", f"it is {str(content)[:80]}")
    ((kind, inside),) = content.items()
    if kind in ("SymInt", "SymFloat", "SymBool"):
        return sizes.number(kind, inside)
    if kind in ("list", "tuple") and isinstance(inside, list):
        items = [value_from_json(item, sizes, depth + 1) for item in inside]
        return items if kind == "list" else tuple(items)
    if kind == "constant":
        return constant_from_json(inside)
    raise damaged(f"the value of a node is a {kind!r}", "no such kind is known")


def _tensor_from_json(content: list[Json], sizes: LoadedSizes) -> torch.Tensor:
    dtype, shape, strides, *rest = content if len(content) >= 3 else [None, None, None]
    if not isinstance(dtype, str) or not isinstance(shape, list) or not isinstance(strides, list) or len(rest) > 2:
        raise damaged("the value of a node is malformed", f"it is {str(content)[:80]}")
    if len(shape) != len(strides) or len(shape) > MAX_RANK:
        raise damaged("the value of a node is malformed", "it has other strides than sizes")
    numbers = [size for size in (*shape, *strides) if isinstance(size, int)]
    if any(number < 0 or number >= 2**48 for number in numbers):
        raise damaged("the value of a node is malformed", f"its sizes are {str(shape)[:80]}")
    requires_grad = bool(rest and rest[0])
    device = constant_from_json({"device": rest[1] if len(rest) > 1 else "cpu"})
    made = torch.empty_strided(
        [sizes.integer(size) for size in shape],
        [sizes.integer(stride) for stride in strides],
        dtype=constant_from_json({"dtype": dtype}),
        device=device,
    )
    return made.requires_grad_() if requires_grad else made


MAX_DEPTH = 20
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,5000}")


@dataclass
class Table:
    """Distinct texts in the order of their first use."""

    rows: dict[str, int] = field(default_factory=dict)

    def number(self, text: str | None) -> int | None:
        return None if text is None else self.rows.setdefault(text, len(self.rows))


@dataclass
class Tables:
    """The tables of one file."""

    stacks: Table = field(default_factory=Table)
    modules: Table = field(default_factory=Table)


def graph_to_json(module: fx.GraphModule, tables: Tables) -> Json:
    """The graph and its subgraphs of control flow."""
    graph = module.graph
    subgraphs = {name: child for name, child in module.named_children() if isinstance(child, fx.GraphModule)}
    return {
        "inputs": [_trimmed([node.name, _value(node)]) for node in graph.nodes if node.op == "placeholder"],
        "nodes": [_node_to_json(node, tables) for node in graph.nodes if node.op not in ("placeholder", "output")],
        "outputs": _argument(graph.output_node().args[0]),
        "subgraphs": {name: graph_to_json(child, tables) for name, child in subgraphs.items()},
    }


def _node_to_json(node: fx.Node, tables: Tables) -> Json:
    if node.op == "get_attr":
        return [node.name, {"graph": str(node.target)}]
    assert node.op == "call_function", f"verified: {node.op} cannot occur in an exported program"
    modules = node.meta.get("nn_module_stack") or {}
    kwargs: Json = {key: _argument(value) for key, value in node.kwargs.items()}
    return _trimmed(
        [
            node.name,
            target_to_json(node.target),
            [_argument(argument) for argument in node.args],
            kwargs or None,
            _value(node),
            tables.stacks.number(node.stack_trace),
            [tables.modules.number(module_record(key, *names)) for key, names in modules.items()] or None,
        ]
    )


def module_record(key: str, path: str, kind: str) -> str:
    """A call of a submodule as one text of a table."""
    number = key.rpartition("@")[2]
    return f"{writable_path(path)}\0{writable_path(kind)}\0{number if number.isdigit() else 0}"


def modules_to_json(table: Table) -> dict[str, Json]:
    """The paths and classes of submodules, and the number of each call, which older readers ignore."""
    records = [text.rpartition("\0") for text in table.rows]
    return {"modules": [names for names, _, _ in records], "call_numbers": [int(number) for _, _, number in records]}


def _value(node: fx.Node) -> Json:
    return value_to_json(value_of(node)) if has_value(node) else None


def _argument(argument: object) -> Json:
    return constant_to_json(argument, lambda value: value.name if isinstance(value, fx.Node) else None)


def _trimmed(record: list[Json]) -> list[Json]:
    while record and record[-1] is None:
        record.pop()
    return record


@dataclass(frozen=True)
class GraphReader:
    """Builds graphs over the tables and symbols of one file. Must run under the fake mode of ``sizes``.

    Graphs that ``may_write`` call operators that write to their inputs, until they are functionalized.
    """

    sizes: LoadedSizes
    stacks: list[str]
    modules: list[tuple[str, str, str]]
    may_write: bool = False

    def read(self, content: Any, depth: int = 0) -> fx.GraphModule:
        """The graph module; its nodes carry values and provenance."""
        if depth > MAX_DEPTH:
            raise damaged("control flow is nested too deeply", f"more than {MAX_DEPTH} levels")
        root = torch.nn.Module()
        for name, subgraph in content["subgraphs"].items():
            root.add_module(_identifier(name), self.read(subgraph, depth + 1))
        graph = fx.Graph()
        nodes: dict[str, fx.Node] = {}
        for record in content["inputs"]:
            name, value = (*record, None)[:2]
            # Passed explicitly: fx would derive a name from the target, e.g. `__or__`.
            node = graph.create_node("placeholder", _identifier(name), name=name)
            self._add(nodes, name, node, value)
        for record in content["nodes"]:
            self._read_node(graph, nodes, root, record)
        graph.output(constant_from_json(content["outputs"], _resolver(nodes)))
        return fx.GraphModule(root, graph)

    def _add(self, nodes: dict[str, fx.Node], name: str, node: fx.Node, value: Json) -> None:
        if node.name != name or name in nodes:
            raise damaged(f"two nodes are called {name!r}, or Python reserves that name", "names of nodes must differ")
        if value is not None:
            set_value(node, value_from_json(value, self.sizes))
        nodes[name] = node

    def _read_node(self, graph: fx.Graph, nodes: dict[str, fx.Node], root: torch.nn.Module, record: Any) -> None:
        name, target, args, kwargs, value, stack, modules = (*record, *[None] * 7)[:7]
        if isinstance(target, dict):
            attribute = _identifier(target.get("graph"))
            if attribute not in root._modules:
                raise damaged(f"a node reads {attribute!r}", "the file has no such graph")
            node = graph.create_node("get_attr", attribute, name=_identifier(name))
        else:
            resolve = _resolver(nodes)
            node = graph.create_node(
                "call_function",
                target_from_json(str(target), may_write=self.may_write),
                tuple(constant_from_json(args, resolve)),
                {_identifier(key): constant_from_json(item, resolve) for key, item in (kwargs or {}).items()},
                name=_identifier(name),
            )
        self._add(nodes, name, node, value)
        if stack is not None:
            node.stack_trace = self.stacks[stack]
        if modules is not None:
            calls = [self.modules[number] for number in modules]
            set_module_stack(node, {key: (path, kind) for key, path, kind in calls})


def module_records(texts: Sequence[str], numbers: Sequence[int] = ()) -> list[tuple[str, str, str]]:
    """The key, path and class of every call of a submodule in a table."""
    if numbers and len(numbers) != len(texts):
        raise damaged("the calls of submodules are malformed", f"{len(numbers)} for {len(texts)}")
    return [_module_call_of(text, number) for text, number in zip(texts, numbers or [0] * len(texts), strict=True)]


def _module_call_of(text: str, number: int) -> tuple[str, str, str]:
    path, parted, kind = text.partition("\0")
    if not parted:
        raise damaged("a record of a submodule is malformed", f"it is {text[:80]!r}")
    again = f"@{number}" if number else ""
    return f"L__self__{checked_path(path)}{again}", path, checked_path(kind)


def _identifier(name: object) -> str:
    if not isinstance(name, str) or not _IDENTIFIER.fullmatch(name) or iskeyword(name) or name == "self":
        raise damaged(f"{str(name)[:80]!r} cannot name a node or graph", "names are letters, digits and underscores")
    return name


def _resolver(nodes: dict[str, fx.Node]) -> Any:
    def resolve(name: str) -> fx.Node:
        if name not in nodes:
            raise damaged(f"a node reads {name[:80]!r}", "no earlier node has that name")
        return nodes[name]

    return resolve
