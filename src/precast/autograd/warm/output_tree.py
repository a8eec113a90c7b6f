"""The containers that a function returns, as data.

What a container class is made of is told by torch's registry of containers. A class that enters itself there when it
is first used may not have done so yet, so the function that makes it is kept by its name.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch.utils import _pytree as pytree

from precast.autograd.size_names import Indescribable
from precast.capture.argument_containers import ArgumentContainer
from precast.ir.opened_objects import Held

_PLAIN = (type(None), bool, int, float, str)

Build = Callable[[Iterator[Any]], Any]
"""Takes as many leaves as it needs, and gives the container."""


def tree_data(tree: pytree.TreeSpec) -> Any:
    """The tree as plain data. Raises Indescribable for containers whose classes or contexts have no name."""
    if tree.is_leaf():
        return None
    return {
        "make": _function_data(pytree.SUPPORTED_NODES[tree.type].unflatten_fn, tree.type),
        "context": constant_data(tree.context),
        "children": [tree_data(child) for child in tree.children()],
    }


def tree_builder(data: Any) -> Build:
    """A function that builds the containers again around their leaves."""
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
        return {"partial": _name_data(function.func), **held}
    return _name_data(function)


_BUILT_IN = {"tuple": tuple, "list": list, "dict": dict}


def _function(data: Any) -> Callable[[Sequence[Any], Any], Any]:
    if "type" in data:
        return pytree.SUPPORTED_NODES[_BUILT_IN[data["type"]]].unflatten_fn
    if "partial" in data:
        return partial(_named(data["partial"]), *constant_of(data["args"]), **constant_of(data["keywords"]))
    found: Callable[[Sequence[Any], Any], Any] = _named(data)
    return found


def _name_data(value: Any) -> dict[str, str]:
    named = {"module": value.__module__, "name": value.__qualname__}
    if "<" in value.__qualname__ or _named(named) is not value:
        raise Indescribable(f"the container of type {value.__qualname__}")
    return named


def _named(data: dict[str, str]) -> Any:
    found: Any = sys.modules.get(data["module"])
    for part in data["name"].split("."):
        found = getattr(found, part, None)
    if found is None:
        raise Indescribable(f"{data['module']}.{data['name']}, which is not there")
    return found


def constant_data(value: Any) -> Any:
    """A plain value as data. Raises Indescribable for any other."""
    if type(value) in _PLAIN:
        return value
    if type(value) is list or type(value) is tuple:
        return {type(value).__name__: [constant_data(item) for item in value]}
    if type(value) is dict:
        return {"dict": [[constant_data(key), constant_data(item)] for key, item in value.items()]}
    if isinstance(value, type):
        return {"class": _name_data(value)}
    if isinstance(value, torch.dtype | torch.device):
        return {type(value).__name__: str(value).removeprefix("torch.")}
    if isinstance(value, Held):
        return {"held": constant_data(value.attributes)}
    if isinstance(value, ArgumentContainer):
        return {"argument": value.number}
    raise Indescribable(f"a container that knows of a {type(value).__name__}")


def constant_of(data: Any) -> Any:
    """The value again."""
    match data:
        case {"list": items}:
            return [constant_of(item) for item in items]
        case {"tuple": items}:
            return tuple(constant_of(item) for item in items)
        case {"dict": items}:
            return {constant_of(key): constant_of(item) for key, item in items}
        case {"class": name}:
            return _named(name)
        case {"held": attributes}:
            return Held(constant_of(attributes))
        case {"dtype": name}:
            return getattr(torch, name)
        case {"device": name}:
            return torch.device(name)
        case {"argument": number}:
            return ArgumentContainer(number)
    return data
