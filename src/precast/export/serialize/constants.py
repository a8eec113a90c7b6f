"""Plain Python values as JSON. Numbers, booleans, None and lists stand for themselves; the rest is tagged.

``"name"`` is a reference (to a node, where there are nodes); text itself is ``{"str": "name"}``.
"""

import math
from collections.abc import Callable
from typing import Any

import torch

from precast.artifact.schema import Json, damaged
from precast.errors import ArtifactError, ExportError
from precast.export.serialize.names import target_from_json, target_to_json

MAX_DEPTH = 50


def _by_name(kind: type) -> dict[str, Any]:
    return {str(value).removeprefix("torch."): value for value in vars(torch).values() if isinstance(value, kind)}


_DTYPES, _LAYOUTS, _FORMATS = _by_name(torch.dtype), _by_name(torch.layout), _by_name(torch.memory_format)

Reference = Callable[[object], str | None]
"""Gives the name of an object that is stored elsewhere, or ``None``."""


def no_references(_: object) -> str | None:
    return None


def constant_to_json(value: Any, reference: Reference = no_references) -> Json:
    """The JSON form of a constant; ``reference`` names what is stored elsewhere."""
    if (name := reference(value)) is not None:
        return name
    if value is None or isinstance(value, (bool, int)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"float": repr(value)}
    if isinstance(value, list):
        return [constant_to_json(item, reference) for item in value]
    if type(value) is tuple or isinstance(value, torch.Size):
        return {"tuple": [constant_to_json(item, reference) for item in value]}
    if isinstance(value, dict):
        return {"dict": [[constant_to_json(key), constant_to_json(item, reference)] for key, item in value.items()]}
    if isinstance(value, slice):
        return {"slice": [constant_to_json(part, reference) for part in (value.start, value.stop, value.step)]}
    return _tagged(value)


def _tagged(value: Any) -> Json:
    if isinstance(value, str):
        return {"str": value}
    if isinstance(value, complex):
        return {"complex": [value.real.hex(), value.imag.hex()]}
    if isinstance(value, bytes):
        return {"bytes": value.hex()}
    for tag, kind in (("dtype", torch.dtype), ("layout", torch.layout), ("format", torch.memory_format)):
        if isinstance(value, kind):
            return {tag: str(value).removeprefix("torch.")}
    if isinstance(value, torch.device):
        return {"device": str(value)}
    if value is ...:
        return {"ellipsis": True}
    if isinstance(value, (torch._ops.OpOverload, torch._ops.HigherOrderOperator)):
        return {"operator": target_to_json(value)}
    raise ExportError(
        f"A {type(value).__name__} cannot be saved.",
        why="a program's file holds tensors, numbers, text, containers of them, and torch's dtypes and devices",
        fix="Turn it into one of these, or keep it out of the arguments and results.",
    )


def constant_from_json(content: Json, resolve: Callable[[str], Any] | None = None, depth: int = 0) -> Any:
    """The value again; ``resolve`` finds what a reference names."""
    if depth > MAX_DEPTH:
        raise damaged("a value is nested too deeply", f"more than {MAX_DEPTH} levels")
    if content is None or isinstance(content, (bool, int, float)):
        return content
    if isinstance(content, str):
        if resolve is None:
            raise damaged(f"a value refers to {content!r}", "nothing can be referred to here")
        return resolve(content)
    if isinstance(content, list):
        return [constant_from_json(item, resolve, depth + 1) for item in content]
    if len(content) != 1:
        raise damaged("a value has no single tag", f"it has {sorted(content)}")
    ((tag, inside),) = content.items()
    if tag in ("tuple", "slice", "dict") and isinstance(inside, list):
        return _container(tag, inside, resolve, depth)
    return _from_tag(tag, inside)


def _container(tag: str, inside: list[Json], resolve: Callable[[str], Any] | None, depth: int) -> Any:
    if tag == "dict":
        pairs = [item for item in inside if isinstance(item, list) and len(item) == 2]
        if len(pairs) != len(inside):
            raise damaged("a dict is not as it should be", "it is a list of pairs")
        return {
            constant_from_json(key, None, depth + 1): constant_from_json(value, resolve, depth + 1)
            for key, value in pairs
        }
    items = [constant_from_json(item, resolve, depth + 1) for item in inside]
    if tag == "slice" and len(items) != 3:
        raise damaged("a slice is not as it should be", f"it has {len(items)} parts")
    return tuple(items) if tag == "tuple" else slice(*items)


_FROM_TEXT: dict[str, Callable[[str], Any]] = {
    "str": str,
    "float": float,
    "bytes": bytes.fromhex,
    "dtype": _DTYPES.__getitem__,
    "layout": _LAYOUTS.__getitem__,
    "format": _FORMATS.__getitem__,
    "device": torch.device,
    "operator": target_from_json,
}


def _from_tag(tag: str, inside: Json) -> Any:
    try:
        if tag in _FROM_TEXT and isinstance(inside, str):
            return _FROM_TEXT[tag](inside)
        if tag == "complex" and isinstance(inside, list):
            real, imaginary = (float.fromhex(str(part)) for part in inside)
            return complex(real, imaginary)
    except ArtifactError:
        raise
    except (ValueError, KeyError, RuntimeError) as problem:
        raise damaged(f"the {tag} {inside!r} is unknown", str(problem)) from problem
    if tag == "ellipsis":
        return ...
    raise damaged(f"a value has the tag {tag!r}", "no such kind of value is known")
