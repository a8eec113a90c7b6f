"""Trees of arguments and results as JSON: ``({"a": *},)`` ↔ ``["tuple", [], [["dict", ["a"], ["*"]]]]``.

Classes are named, never imported: one that the loading process does not know is an error, except for named tuples,
which are made again from their fields.
"""

from collections import OrderedDict, defaultdict, deque, namedtuple
from collections.abc import Callable
from typing import Any

from torch.utils import _pytree as pytree

from precast.artifact.schema import Json, damaged
from precast.artifact.trees import class_name, find_class, is_attribute_name
from precast.errors import ArtifactError, ExportError
from precast.export.serialize.constants import constant_from_json, constant_to_json
from precast.graph.opened_objects import Held, Opened, is_container_class

MAX_DEPTH = 100
MAX_LEAVES = 1_000_000
_BUILTIN: dict[str, type] = {
    "tuple": tuple,
    "list": list,
    "dict": dict,
    "OrderedDict": OrderedDict,
    "deque": deque,
}
_NAMES = {kind: name for name, kind in _BUILTIN.items()}


def tree_to_json(tree: pytree.TreeSpec) -> Json:
    """A leaf is ``"*"``; a node is its kind, its context, and its children."""
    if tree.is_leaf():
        return "*"
    children: Json = [tree_to_json(child) for child in tree.children()]
    if tree.type in _NAMES:
        return [_NAMES[tree.type], constant_to_json(_keys(tree)), children]
    if tree.type is defaultdict:
        factory, keys = tree.context
        return ["defaultdict", [_factory_name(factory), constant_to_json(keys)], children]
    if tree.type is namedtuple:
        return ["namedtuple", [class_name(tree.context), list(tree.context._fields)], children]
    return ["class", [class_name(tree.type), _context_to_json(tree)], children]


def _keys(tree: pytree.TreeSpec) -> Any:
    return tree.context if tree.type is deque else list(tree.context or [])


def _factory_name(factory: Any) -> Json:
    return getattr(factory, "__name__", None) if factory in (None, *_FACTORIES.values()) else None


_FACTORIES: dict[str, type] = {"int": int, "float": float, "list": list, "dict": dict, "set": set}


def _context_to_json(tree: pytree.TreeSpec) -> Json:
    try:
        return constant_to_json(_as_constant(tree.context))
    except ExportError as problem:
        raise ExportError(
            f"The tree node {class_name(tree.type)} cannot be saved.",
            why="what it keeps besides its children is no plain value",
            fix="Register it with a context of plain values, for example with torch.utils._pytree.register_dataclass.",
        ) from problem


def _as_constant(context: Any) -> Any:
    """Contexts name classes now and then, as transformers' do: these are saved by name."""
    if isinstance(context, type):
        return {"__class__": class_name(context)}
    if isinstance(context, Held):
        return {"__held__": {name: _as_constant(value) for name, value in context.attributes.items()}}
    if isinstance(context, (list, tuple)):
        return type(context)(_as_constant(item) for item in context)
    return context


def tree_from_json(content: Json, depth: int = 0) -> pytree.TreeSpec:
    """The tree again, over the classes that this process has registered."""
    if content == "*":
        return pytree.treespec_leaf()
    kind, context, children = content if isinstance(content, list) and len(content) == 3 else (None, None, None)
    if depth > MAX_DEPTH or not isinstance(children, list):
        raise damaged("a tree of arguments is not as it should be", f"it holds {str(content)[:80]}")
    if len(children) > MAX_LEAVES:
        raise damaged("a tree of arguments is too large", f"it has {len(children)} children")
    specs = [tree_from_json(child, depth + 1) for child in children]
    node, node_context = _node(kind, context)
    keys = node_context[1] if node is defaultdict else node_context
    if node in (dict, OrderedDict, defaultdict) and len(keys) != len(specs):
        raise damaged("a tree of arguments is not as it should be", "a dict has other keys than values")
    if node is Opened and len(node_context[1]) != len(specs):
        raise damaged("a tree of arguments is not as it should be", "an object has other attributes than values")
    return pytree.TreeSpec(node, node_context, specs)


def _node(kind: Json, context: Json) -> tuple[Any, Any]:
    if isinstance(kind, str) and kind in _BUILTIN:
        value = constant_from_json(context)
        if kind in ("tuple", "list"):
            return _BUILTIN[kind], None
        if kind == "deque":
            return deque, value
        if not isinstance(value, list):
            raise damaged("a dict in a tree of arguments is not as it should be", "its keys are a list")
        return _BUILTIN[kind], value
    if not isinstance(context, list) or len(context) != 2:
        raise damaged("a tree of arguments is not as it should be", f"a {kind} holds {str(context)[:80]}")
    if kind == "defaultdict":
        return defaultdict, [_FACTORIES.get(str(context[0])), constant_from_json(context[1])]
    if kind == "namedtuple" and isinstance(context[1], list):
        return namedtuple, _namedtuple_class(str(context[0]), [str(field) for field in context[1]])
    if kind == "class":
        found = _registered_class(str(context[0]))
        if found is Opened:
            return found, _checked_attributes(_with_classes(constant_from_json(context[1]), _class_to_open))
        return found, _with_classes(constant_from_json(context[1]), _registered_class)
    raise damaged(f"a tree of arguments holds a {kind!r}", "no such node is known")


def _checked_attributes(context: Any) -> Any:
    """What an object keeps besides its children: its class, the names of its attributes, and what others hold."""
    kind, names, *others = context if isinstance(context, list | tuple) and len(context) in (2, 3) else (None, ())
    is_sound = isinstance(kind, type) and isinstance(names, list | tuple) and all(isinstance(h, Held) for h in others)
    known = [*names, *(name for each in others for name in each.attributes)] if is_sound else [None]
    if not all(map(is_attribute_name, known)) or len(set(known)) < len(known):
        raise damaged("a tree of arguments is not as it should be", "the attributes of an object are no names")
    return context


def _namedtuple_class(name: str, fields: list[str]) -> Any:
    found = find_class(name)
    if pytree.is_namedtuple_class(found) and list(found._fields) == fields:
        return found
    try:
        return namedtuple(name.rpartition(".")[2].rpartition(":")[2], fields)
    except ValueError as problem:
        raise damaged(f"the named tuple {name!r} is not as it should be", str(problem)) from problem


def _registered_class(name: str) -> Any:
    classes = {class_name(kind): kind for kind in pytree.SUPPORTED_NODES if isinstance(kind, type)}
    found = classes.get(name)
    if found is None:
        raise ArtifactError(
            f"the program takes or gives a {name!r}, which is not registered here",
            why="a file names classes; loading it never imports code",
            fix="import the module that registers the class with torch.utils._pytree before loading",
        )
    return found


def _class_to_open(name: str) -> Any:
    """A class whose objects are made of their attributes: caches and records, and no other that a file might name."""
    found = find_class(name)
    if not isinstance(found, type) or not is_container_class(found):
        raise ArtifactError(
            f"the program takes or gives a {name!r}, which is not known here",
            why="a file names classes; loading it never imports code",
            fix="import the module of the class before loading",
        )
    return found


def _with_classes(context: Any, find: Callable[[str], Any]) -> Any:
    if isinstance(context, dict) and set(context) == {"__class__"}:
        return find(str(context["__class__"]))
    if isinstance(context, dict) and set(context) == {"__held__"}:
        return Held({str(name): _with_classes(value, find) for name, value in dict(context["__held__"]).items()})
    if isinstance(context, (list, tuple)):
        return type(context)(_with_classes(item, find) for item in context)
    return context
