"""Flattens calls and unflattens results by the trees of a file; torch's classes are used only where torch is loaded.

A class that is registered with torch's pytree in this process is restored, and so is an object (a cache, a dataclass)
whose class is loaded; any other is returned as a ``Record``.
"""

from __future__ import annotations

import sys
from collections import defaultdict, deque, namedtuple
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from keyword import iskeyword
from typing import Any

import numpy as np

from precast.artifact.constants import NAMED, Named
from precast.artifact.trees import (
    COUNTERS,
    FACTORIES,
    MAPPINGS,
    SEQUENCES,
    Tree,
    class_name,
    find_class,
    is_container_class,
    node_text,
    registered_class,
)


class Record:
    """The content of an object whose class is not available here; access it by field, key or position.

    >>> output = Record("models:Output", ("logits", "loss"), (1, 2))
    >>> output.logits, output["loss"], output[0]
    (1, 2, 1)
    """

    def __init__(self, class_name: str, keys: Sequence[Any], values: Sequence[Any]):
        self._class_name, self._values = class_name, tuple(values)
        self._keys = tuple(keys) or tuple(range(len(self._values)))

    def keys(self) -> tuple[Any, ...]:
        return self._keys

    def __getitem__(self, key: Any) -> Any:
        if key in self._keys:
            return self._values[self._keys.index(key)]
        return self._values[key]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name not in self._keys:
            raise AttributeError(f"{self._class_name} has no {name!r}")
        return self[name]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        fields = ", ".join(f"{key}={value!r}" for key, value in zip(self._keys, self._values, strict=True))
        return f"{self._class_name.rpartition(':')[2]}({fields})"


class TreeMismatchError(Exception):
    """A value's structure differs from the tree."""


def flatten(tree: Tree, value: Any, path: str) -> list[tuple[str, Any]]:
    """The leaves of a value, each with its path; ``TreeMismatchError`` if its structure differs."""
    if tree.is_leaf:
        return [(path, value)]
    found = _children(tree, value)
    if found is None or len(found) != len(tree.children):
        raise TreeMismatchError(path)
    pairs = zip(tree.children, found, strict=True)
    return [leaf for child, (step, each) in pairs for leaf in flatten(child, each, path + step)]


def unflatten(tree: Tree, leaves: Iterator[Any]) -> Any:
    """A value of that structure over the next leaves."""
    if tree.is_leaf:
        return next(leaves)
    children = [unflatten(child, leaves) for child in tree.children]
    if tree.kind in ("tuple", "list"):
        return SEQUENCES[tree.kind](children)
    if tree.kind == "deque":
        return deque(children, tree.context if isinstance(tree.context, int) else None)
    if tree.kind == "defaultdict":
        return defaultdict(FACTORIES.get(str(tree.context)), zip(tree.keys, children, strict=True))
    if tree.kind in MAPPINGS:
        return MAPPINGS[tree.kind](zip(tree.keys, children, strict=True))
    if tree.kind == "namedtuple":
        return _named_tuple(tree)(*children)
    return _object(tree, children) if tree.kind == "object" else _instance(tree, children)


def tree_text(tree: Tree) -> str:
    """The usual notation of a tree: ``(*, {'mask': *})``."""
    if tree.is_leaf:
        return "*"
    name = (tree.class_name or str(tree.kind)).rpartition(":")[2]
    return node_text(tree.kind, tree.keys, [tree_text(child) for child in tree.children], name)


def value_text(value: Any, depth: int = 0) -> str:
    """The structure of the arguments of a call, with ``*`` for anything but plain containers."""
    kind = next((kind for kind in (list, tuple, dict) if isinstance(value, kind)), None)
    if kind is None or hasattr(value, "_fields") or depth >= 20:
        return "*"
    items = value.values() if kind is dict else value
    return node_text(kind.__name__, value, [value_text(item, depth + 1) for item in items], "")


def _children(tree: Tree, value: Any) -> list[tuple[str, Any]] | None:
    """The path steps and the children, in the tree's order; None if the value does not match."""
    if tree.kind in SEQUENCES:
        if _is_plain(value, SEQUENCES[tree.kind]):
            return [(f"[{position}]", item) for position, item in enumerate(value)]
        return None
    if tree.kind in MAPPINGS:
        if _is_plain(value, MAPPINGS[tree.kind]) and set(value) == set(tree.keys):
            return [(f"[{key!r}]", value[key]) for key in tree.keys]
        return None
    if tree.kind == "namedtuple":
        if isinstance(value, tuple) and getattr(value, "_fields", None) == tree.keys:
            return [(f".{key}", item) for key, item in zip(tree.keys, value, strict=True)]
        return _named_parts(tree, value, ".{}")
    return _attributes(tree, value) if tree.kind == "object" else _class_children(tree, value)


def _attributes(tree: Tree, value: Any) -> list[tuple[str, Any]] | None:
    """The attributes of an object of the tree's class, or of a mapping or record in its place."""
    if isinstance(value, Record) or (isinstance(value, Mapping) and class_name(type(value)) != tree.class_name):
        found = {key: value[key] for key in value.keys()}  # noqa: SIM118 - a record iterates over its values
    elif class_name(type(value)) == tree.class_name:
        found = {key: getattr(value, key) for key in tree.keys if hasattr(value, key)}
    else:
        return None
    if found.keys() != set(tree.keys):
        return None
    return [(f".{key}", _counted(found[key]) if key in COUNTERS else found[key]) for key in tree.keys]


def _counted(number: Any) -> Any:
    """A number that a cache counts up, in the form that programs take."""
    return np.empty((number, 0), np.float32) if type(number) is int and number >= 0 else number


def _object(tree: Tree, children: list[Any]) -> Any:
    """An object of the class, created without its constructor, if the class is loaded; else a record."""
    assert tree.class_name is not None, "checked when it was read"
    values = [
        each.shape[0] if key in COUNTERS and tuple(getattr(each, "shape", ()))[1:] == (0,) else each
        for key, each in zip(tree.keys, children, strict=True)
    ]
    kind = find_class(tree.class_name)
    if not is_container_class(kind):
        return Record(tree.class_name, tree.keys, values)
    made = kind.__new__(kind)
    named = tree.context if isinstance(tree.context, dict) else {}
    held = {key: found for key, name in named.items() if is_container_class(found := find_class(str(name)))}
    for key, value in {**held, **dict(zip(tree.keys, values, strict=True))}.items():
        # Works for frozen objects too.
        object.__setattr__(made, key, _of_torch(value) if isinstance(value, Named) else value)
    return made


def _of_torch(value: Named) -> Any:
    """Torch's own dtype or device, if torch is loaded."""
    torch: Any = sys.modules.get("torch")
    if torch is None or value.kind not in ("dtype", "device"):
        return value
    return torch.device(value.name) if value.kind == "device" else getattr(torch, value.name, value)


def _is_plain(value: Any, kind: type) -> bool:
    """Whether a value is such a container, or fx's variant of it."""
    return type(value) is kind or (type(value).__name__ == f"immutable_{kind.__name__}" and isinstance(value, kind))


def _class_children(tree: Tree, value: Any) -> list[tuple[str, Any]] | None:
    node = registered_class(tree.class_name)
    if node is not None and isinstance(value, node[0]):
        children, _ = node[1].flatten_fn(value)
        keys = tree.keys or tuple(range(len(tree.children)))
        return [(f".{key}", child) for key, child in zip(keys, children, strict=False)]
    return _named_parts(tree, value, "[{!r}]") if tree.keys else None


def _named_parts(tree: Tree, value: Any, step: str) -> list[tuple[str, Any]] | None:
    """The children in a mapping or record in place of an object."""
    if isinstance(value, Mapping | Record) and set(value.keys()) == set(tree.keys):
        return [(step.format(key), value[key]) for key in tree.keys]
    return None


def _instance(tree: Tree, children: list[Any]) -> Any:
    node = registered_class(tree.class_name)
    assert tree.class_name is not None, "checked when it was read"
    if node is None:
        return Record(tree.class_name, tree.keys, children)
    return node[1].unflatten_fn(children, _context(NAMED.read(tree.context)))


def _context(value: Any) -> Any:
    """The context of a class: classes and torch's own values in it are replaced by their names."""
    match value:
        case {"__class__": str(name)}:
            found = registered_class(name)
            return found[0] if found else None
        case list() | tuple():
            return type(value)(map(_context, value))
        case dict():
            return {_context(key): _context(item) for key, item in value.items()}
        case Named():
            return _of_torch(value)
    return value


def _named_tuple(tree: Tree) -> Any:
    """The class of that name if it is loaded and has these fields, else one like it."""
    named = tree.class_name or ""
    found = find_class(named)
    if isinstance(found, type) and issubclass(found, tuple) and getattr(found, "_fields", None) == tree.keys:
        return found
    name = named.partition(":")[2].rpartition(".")[2]
    if iskeyword(name) or not name.isidentifier():
        name = "NamedTuple"
    if any(iskeyword(key) or key.startswith("_") for key in tree.keys):
        return partial(_record, tree)
    return namedtuple(name, tree.keys)


def _record(tree: Tree, *children: Any) -> Record:
    """Represents a named tuple whose fields are not valid for a generated class."""
    return Record(tree.class_name or "", tree.keys, children)
