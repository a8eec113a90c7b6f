"""Writes a graph as Python source that needs only torch.

Before: a ``fx.GraphModule`` with tensors and graphs of branches as attributes
After:  ``class FxModule(torch.nn.Module)`` with the graph's code as its ``forward``, a class for each branch, and the
        tensors by name, to be written to a file beside it
"""

import copy
import inspect
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, field
from operator import attrgetter
from types import ModuleType

import torch
from torch import fx

from precast.debug import tensor_file
from precast.errors import InputTypeError

TENSORS_FILE = "tensors.safetensors"

_LOADING = f"TENSORS = read_tensors(os.path.join(os.path.dirname(os.path.abspath(__file__)), {TENSORS_FILE!r}))"


@dataclass
class GraphSource:
    """Source under construction: classes in order of definition, and the tensors that they refer to."""

    classes: list[str] = field(default_factory=list)
    global_names: dict[str, object] = field(default_factory=dict)
    tensors: dict[str, torch.Tensor] = field(default_factory=dict)

    def text(self) -> str:
        """Return the whole module."""
        body = "\n\n\n".join(self.classes)
        imports = {"import torch", *_imports_of(self.global_names, body)}
        if not self.tensors:
            return "\n".join(sorted(imports)) + "\n\n\n" + body + "\n"
        imports |= {"import json", "import os"}
        return "\n\n\n".join(["\n".join(sorted(imports)), reader_source(), _LOADING, body]) + "\n"


def graph_source(graph_module: fx.GraphModule) -> GraphSource:
    """Return the source of ``class FxModule``, which computes what ``graph_module`` does."""
    source = GraphSource()
    _add_class(source, graph_module, "FxModule")
    return source


def reader_source() -> str:
    """Return the source of ``read_tensors``, to be included in generated code."""
    functions = inspect.getsource(tensor_file.lay_out), inspect.getsource(tensor_file.read_tensors)
    # Drop annotations that would need further imports.
    return re.sub(r": (Sequence\[int\]|str \| Path)", "", "\n\n".join(functions)).strip()


def _add_class(source: GraphSource, graph_module: fx.GraphModule, class_name: str) -> None:
    graph = copy.deepcopy(graph_module.graph)
    graph.set_codegen(fx.graph.CodeGen())  # flat inputs and outputs instead of the caller's pytrees
    attributes: dict[str, str] = {}
    flat_names: dict[str, str] = {}
    for node in graph.nodes:
        if node.op in ("get_attr", "call_module"):
            value, path = attrgetter(node.target)(graph_module), node.target
            node.target = flat_names.setdefault(path, _free_name(path, flat_names))
            attributes[path] = _attribute(source, node.target, value, class_name)
    code = graph.python_code("self")
    source.global_names.update(code.globals)
    lines = [f"class {class_name}(torch.nn.Module):"]
    if attributes:
        lines += ["    def __init__(self):", "        super().__init__()"]
        lines += [f"        {line}" for line in attributes.values()] + [""]
    lines.append(textwrap.indent(code.src.strip(), "    "))
    source.classes.append("\n".join(lines))


def _free_name(path: str, flat_names: dict[str, str]) -> str:
    """Return a unique name without dots for a path."""
    name = path.replace(".", "_")
    while name in flat_names.values():
        name += "_"
    return name


def _attribute(source: GraphSource, name: str, value: object, class_name: str) -> str:
    if isinstance(value, torch.Tensor):
        source.tensors[f"{class_name}.{name}"] = value
        return f"self.register_buffer({name!r}, TENSORS[{f'{class_name}.{name}'!r}].clone())"
    if isinstance(value, fx.GraphModule):
        inner_name = f"{class_name}_{name}"
        if not any(text.startswith(f"class {inner_name}(") for text in source.classes):
            _add_class(source, value, inner_name)
        return f"self.{name} = {inner_name}()"
    raise InputTypeError(
        f"attribute {name!r} of the graph, of type {type(value).__name__}, cannot be written as source",
        why="a saved graph holds tensors and graphs",
        fix="capture the program with precast, which turns modules into ops and tensors",
    )


def _imports_of(global_names: dict[str, object], body: str) -> Iterator[str]:
    for name, value in global_names.items():
        if name == "torch" or not re.search(rf"(?<![\w.]){re.escape(name)}\b", body):
            continue
        if isinstance(value, ModuleType):
            yield f"import {value.__name__} as {name}"
        elif isinstance(value, float):
            yield f"from math import {value}"  # `inf` and `nan`, printed under their own names
        elif value is type(None):
            yield f"{name} = type(None)"
        else:
            home, own_name = getattr(value, "__module__", "builtins"), getattr(value, "__name__", name)
            yield f"from {home} import {own_name}" + ("" if own_name == name else f" as {name}")
