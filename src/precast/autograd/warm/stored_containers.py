"""The containers that a function returns or leaves in Python state, as data.

Containers are pytree nodes. A class may not have been registered with torch's pytree yet when its containers are
rebuilt, so the unflatten function is stored by its name.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from operator import attrgetter
from typing import Any

from torch.utils import _pytree as pytree

from precast.artifact.constants import Kind
from precast.artifact.trees import class_name
from precast.cache import Indescribable
from precast.errors import ExportError
from precast.graph.constants import torch_codec
from precast.graph.opened_objects import Held, unflatten_node
from precast.trace.capture.argument_containers import ArgumentContainer

Build = Callable[[Iterator[Any]], Any]
"""Takes as many leaves as it needs, and returns the container."""


def tree_data(tree: pytree.TreeSpec) -> Any:
    """The tree as plain data. Raises Indescribable for containers whose classes or contexts have no name."""
    if tree.is_leaf():
        return None
    return {
        "make": _function_data(unflatten_node(tree.type), tree.type),
        "context": constant_data(tree.context),
        "children": [tree_data(child) for child in tree.children()],
    }


def tree_builder(data: Any) -> Build:
    """A function that rebuilds the containers around their leaves."""
    if data is None:
        return next
    make, context = _function(data["make"]), constant_of(data["context"])
    children = [tree_builder(child) for child in data["children"]]
    return lambda leaves: make([child(leaves) for child in children], context)


def _function_data(function: Any, kind: Any) -> Any:
    if kind in _BUILT_IN.values():
        return {"type": next(name for name, known in _BUILT_IN.items() if known is kind)}
    if isinstance(function, partial):
        held = {"args": constant_data(function.args), "keywords": constant_data(function.keywords)}
        return {"partial": _name(function.func), **held}
    return {"function": _name(function)}


_BUILT_IN = {"tuple": tuple, "list": list, "dict": dict}


def _function(data: Any) -> Callable[[Sequence[Any], Any], Any]:
    if "type" in data:
        return unflatten_node(_BUILT_IN[data["type"]])
    if "partial" in data:
        return partial(_named(data["partial"]), *constant_of(data["args"]), **constant_of(data["keywords"]))
    found: Callable[[Sequence[Any], Any], Any] = _named(data["function"])
    return found


def _name(value: Any) -> str:
    name = class_name(value)
    if "<" in name or _named(name) is not value:
        raise Indescribable(f"the container of type {value.__qualname__}")
    return name


def _named(name: str) -> Any:
    module, _, path = name.partition(":")
    found: Any = sys.modules.get(module)
    for part in path.split("."):
        found = getattr(found, part, None)
    if found is None:
        raise Indescribable(f"{name}, which does not exist")
    return found


_CONSTANTS = torch_codec(
    **{"class": Kind((type,), _name, _named)},
    held=Kind((Held,), attrgetter("attributes"), Held, dict),
    argument=Kind((ArgumentContainer,), attrgetter("number"), ArgumentContainer, int),
)
_BASES = (int, float, complex, str, bytes, list, dict)
_PLAIN = frozenset({bool, *_BASES})


def constant_data(value: Any) -> Any:
    """A plain value as data. Raises Indescribable for any other."""
    try:
        return _CONSTANTS.write(value, _refuse_subclass)
    except ExportError as problem:
        raise Indescribable(f"a container with an unsupported context: {problem.args[0].partition('.')[0]}") from None


def _refuse_subclass(value: object) -> None:
    """Refuse subclasses of plain types: they would be stored as the plain type."""
    if isinstance(value, _BASES) and type(value) not in _PLAIN:
        raise Indescribable(f"a container whose context has a {type(value).__name__}")


constant_of = _CONSTANTS.read
