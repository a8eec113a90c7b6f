"""Trees of arguments and results in files, read without torch. The form is that of ``precast.export``.

``({"a": *},)`` is ``["tuple", [], [["dict", [{"str": "a"}], ["*"]]]]``. Classes are named, never imported.

Also finds the named classes in this process, and decides which of them may be instantiated. With torch,
``export.serialize.trees`` makes torch's own trees from what is read here.
"""

from __future__ import annotations

import dataclasses
import sys
from collections import OrderedDict, UserDict, defaultdict, deque
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from precast.artifact.constants import NAMED, ConstantCodec
from precast.artifact.schema import Json, brief, damaged

COUNTERS = frozenset({"cumulative_length", "cumulative_length_int", "_seen_tokens"})
"""Counters that caches increment at every call. They are passed as sizes of empty tensors, which may be dynamic."""


def class_name(kind: type) -> str:
    """The name of a class in files: ``module:name``."""
    return f"{kind.__module__}:{kind.__qualname__}"


def find_class(name: str) -> Any:
    """The object of that name in the loaded modules; None if there is none."""
    module, _, path = name.partition(":")
    found: Any = sys.modules.get(module)
    for part in path.split("."):
        found = vars(found).get(part) if hasattr(found, "__dict__") else None
    return found


def registered_class(name: str | None) -> tuple[type, Any] | None:
    """The class of that name and its registration with torch's pytree, if it has one in this process."""
    pytree = sys.modules.get("torch.utils._pytree")
    for kind, node in pytree.SUPPORTED_NODES.items() if pytree is not None else ():
        if isinstance(kind, type) and class_name(kind) == name:
            return kind, node
    return None


def is_attribute_name(name: object) -> bool:
    """Whether a file may set an attribute of that name: not one that Python itself uses."""
    return isinstance(name, str) and name.isidentifier() and not name.startswith("__")


def is_container_class(kind: object) -> bool:
    """Whether objects of a class consist of their attributes only: caches, dataclasses, wrapped dicts."""
    if not isinstance(kind, type) or any(base.__module__.partition(".")[0] == "torch" for base in kind.__mro__):
        return False
    is_cache = any(base.__name__.endswith(("Cache", "CacheLayerMixin")) for base in kind.__mro__)
    is_transformers_cache = is_cache and kind.__module__.startswith("transformers.")
    is_record = dataclasses.is_dataclass(kind) or hasattr(kind, "__attrs_attrs__")
    return is_transformers_cache or is_record or issubclass(kind, UserDict)


MAX_DEPTH = 100
MAX_CHILDREN = 1_000_000
SEQUENCES: dict[str, type] = {"tuple": tuple, "list": list, "deque": deque}
MAPPINGS: dict[str, type] = {"dict": dict, "OrderedDict": OrderedDict, "defaultdict": defaultdict}
FACTORIES: dict[str, type] = {"int": int, "float": float, "list": list, "dict": dict, "set": set}
"""The factories that a defaultdict in a file may have."""


class Tree(NamedTuple):
    """A leaf, if there is no kind, or a container of that kind with children.

    ``keys``: of mappings; the fields of named tuples, of classes if they are known; the attributes of objects.
    ``class_name``: of named tuples, classes and objects, ``module:name``. ``context``: any other context of a class;
    for objects, the classes that their attributes refer to.
    A class is one registered with torch's pytree; an object is represented by its attributes.
    """

    kind: str | None = None
    keys: tuple[Any, ...] = ()
    children: tuple[Tree, ...] = ()
    class_name: str | None = None
    context: Json = None

    @property
    def is_leaf(self) -> bool:
        return self.kind is None

    def leaf_count(self) -> int:
        return 1 if self.is_leaf else sum(child.leaf_count() for child in self.children)


def read_tree(content: Json, constants: ConstantCodec = NAMED, depth: int = 0) -> Tree:
    """Read a tree; anything unknown means a damaged file. ``constants`` reads its keys."""
    if content == "*":
        return Tree()
    if not isinstance(content, list) or len(content) != 3 or depth > MAX_DEPTH:
        raise _misshapen(f"it holds {brief(content)} at depth {depth}")
    kind, context, children = content
    if not isinstance(kind, str) or not isinstance(children, list) or len(children) > MAX_CHILDREN:
        raise _misshapen(f"it holds {brief(content)}")
    below = tuple(read_tree(child, constants, depth + 1) for child in children)
    tree = _node(kind, context, below, constants)
    if tree.kind in (*MAPPINGS, "namedtuple", "object") and len(tree.keys) != len(below):
        raise _misshapen(f"a {tree.kind} has other keys than values")
    return tree


def _node(kind: str, context: Json, children: tuple[Tree, ...], constants: ConstantCodec) -> Tree:
    if kind == "deque" and context is not None and not (type(context) is int and len(children) <= context < 2**62):
        raise _misshapen(f"a deque of {len(children)} has the length {brief(context)}")
    if kind in SEQUENCES:
        return Tree(kind, (), children, context=context)
    if kind in ("dict", "OrderedDict"):
        return Tree(kind, _keys(context, constants), children)
    if not isinstance(context, list) or len(context) not in (2, 3):
        raise _misshapen(f"a {kind[:80]} holds {brief(context)}")
    name, rest, *fields = context
    if kind == "defaultdict":
        return Tree(kind, _keys(rest, constants), children, context=name)
    if kind not in ("namedtuple", "class", "object") or not isinstance(name, str) or len(name) > 500:
        raise _misshapen(f"it holds a {kind[:80]}")
    if kind == "namedtuple":
        names = tuple(rest) if isinstance(rest, list) else ()
        if not all(isinstance(field, str) and field.isidentifier() for field in names) or len(set(names)) < len(names):
            raise _misshapen("the fields of a named tuple are not names, or not unique")
        return Tree(kind, names, children, name)
    known = _keys(fields[0], constants) if fields else ()
    if kind == "object":
        held = rest if isinstance(rest, dict) else {}
        if not all(map(is_attribute_name, (*known, *held))) or not all(isinstance(each, str) for each in held.values()):
            raise _misshapen("the attributes of an object are not names")
        return Tree(kind, known, children, name, held)
    return Tree(kind, known if len(known) == len(children) else (), children, name, rest)


def _keys(content: Json, constants: ConstantCodec) -> tuple[Any, ...]:
    keys = constants.read(content)
    if not isinstance(keys, list):
        raise _misshapen("the keys of a mapping must be a list")
    try:
        if len(set(keys)) != len(keys):
            raise _misshapen("a key occurs twice")
    except TypeError as problem:
        raise _misshapen(str(problem)) from problem
    return tuple(keys)


def node_text(kind: str | None, keys: Iterable[Any], children: Sequence[str], name: str) -> str:
    """The usual notation of a container, from the texts of its children: ``(*, {'mask': *})``; others by their name."""
    inside = ", ".join(children)
    if kind == "tuple":
        return f"({inside}{',' if len(children) == 1 else ''})"
    if kind == "list":
        return f"[{inside}]"
    if kind == "dict":
        return "{" + ", ".join(f"{key!r}: {child}" for key, child in zip(keys, children, strict=True)) + "}"
    return f"{name}({inside})"


def _misshapen(why: str) -> Exception:
    return damaged("a tree of arguments is malformed", why)
