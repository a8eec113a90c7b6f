"""Trees of arguments and results as JSON: ``({"a": *},)`` ↔ ``["tuple", [], [["dict", ["a"], ["*"]]]]``.

Classes are named, never imported: one that is unknown in the loading process is an error, except for named tuples,
which are recreated from their fields.
"""

from collections import defaultdict, deque, namedtuple
from collections.abc import Callable, Sequence
from typing import Any

from torch.utils import _pytree as pytree

from precast.artifact.schema import Json, damaged
from precast.artifact.trees import (
    FACTORIES,
    MAPPINGS,
    SEQUENCES,
    Tree,
    class_name,
    find_class,
    is_attribute_name,
    read_tree,
    registered_class,
)
from precast.errors import ArtifactError, ExportError
from precast.export.serialize.constants import CONSTANTS, constant_from_json, constant_to_json
from precast.graph.opened_objects import ITEMS, Held, Opened, child_keys, is_container_class

_NAMES = {kind: name for name, kind in (SEQUENCES | MAPPINGS).items() if kind is not defaultdict}


def tree_to_json(tree: pytree.TreeSpec, *, with_fields: bool = False) -> Json:
    """A leaf is ``"*"``; a node is its kind, its context, and its children.

    ``with_fields`` adds the classes' names for their children, so that it can be described without the class; flattened
    objects are named by their own class then.
    """
    if tree.is_leaf():
        return "*"
    children: Json = [tree_to_json(child, with_fields=with_fields) for child in tree.children()]
    if tree.type in _NAMES:
        return [_NAMES[tree.type], constant_to_json(_keys(tree)), children]
    if tree.type is defaultdict:
        factory, keys = tree.context
        return ["defaultdict", [_factory_name(factory), constant_to_json(keys)], children]
    if tree.type is namedtuple:
        return ["namedtuple", [class_name(tree.context), list(tree.context._fields)], children]
    if tree.type is Opened and ITEMS in tree.context[1]:
        raise ExportError(
            f"A container of the class {class_name(tree.context[0])} cannot be saved.",
            why="it is a dict, list or tuple of a class of its own, and files hold plain ones",
            fix="Pass and return a plain one, or register the class with torch.utils._pytree.register_pytree_node.",
        )
    context, fields = _context_to_json(tree), _fields(tree)
    if not with_fields:
        return ["class", [class_name(tree.type), context], children]
    if tree.type is Opened:
        return ["object", [class_name(tree.context[0]), _held_classes(tree.context[2:]), fields], children]
    return ["class", [class_name(tree.type), context, fields], children]


def _keys(tree: pytree.TreeSpec) -> Any:
    return tree.context if tree.type is deque else list(tree.context or [])


def _factory_name(factory: Any) -> Json:
    return getattr(factory, "__name__", None) if factory in (None, *FACTORIES.values()) else None


def _held_classes(held: Sequence[Held]) -> Json:
    """The classes that an object's attributes refer to, by attribute; nothing else can be stored."""
    return {name: class_name(value) for each in held for name, value in each.attributes.items()}


def _fields(tree: pytree.TreeSpec) -> Json:
    """The class's names for its children, if it has any."""
    keys = [getattr(key, "name", getattr(key, "key", None)) for key in child_keys(tree)]
    return constant_to_json(keys) if all(isinstance(key, str) for key in keys) else []


def _context_to_json(tree: pytree.TreeSpec) -> Json:
    try:
        return constant_to_json(_as_constant(tree.context))
    except ExportError as problem:
        raise ExportError(
            f"The tree node {class_name(tree.type)} cannot be saved.",
            why="its context is not a plain value",
            fix="Register it with a context of plain values, for example with torch.utils._pytree.register_dataclass.",
        ) from problem


def _as_constant(context: Any) -> Any:
    """Contexts may refer to classes, as those of transformers do: these are stored by name."""
    if isinstance(context, type):
        return {"__class__": class_name(context)}
    if isinstance(context, Held):
        return {"__held__": {name: _as_constant(value) for name, value in context.attributes.items()}}
    if isinstance(context, (list, tuple)):
        return (tuple if isinstance(context, tuple) else list)(_as_constant(item) for item in context)
    return context


def tree_from_json(content: Json) -> pytree.TreeSpec:
    """Restore the tree, over the classes registered in this process."""
    return _spec(read_tree(content, CONSTANTS))


def _spec(tree: Tree) -> pytree.TreeSpec:
    if tree.is_leaf:
        return pytree.treespec_leaf()
    kind, context = _node(tree)
    if kind is Opened and len(context[1]) != len(tree.children):
        raise damaged("a tree of arguments is malformed", "an object has other attributes than values")
    return pytree.TreeSpec(kind, context, [_spec(child) for child in tree.children])


def _node(tree: Tree) -> tuple[Any, Any]:
    """The container's type in torch's pytree, and its context."""
    keys = list(tree.keys)
    match tree.kind:
        case "tuple" | "list":
            return SEQUENCES[tree.kind], None
        case "deque":
            return deque, tree.context
        case "dict" | "OrderedDict":
            return MAPPINGS[tree.kind], keys
        case "defaultdict":
            return defaultdict, [FACTORIES.get(str(tree.context)), keys]
        case "namedtuple":
            return namedtuple, _namedtuple_class(str(tree.class_name), keys)
        case "class":
            found = _registered_class(str(tree.class_name))
            context = constant_from_json(tree.context)
            if found is Opened:
                return found, _checked_attributes(_with_classes(context, _class_to_open))
            return found, _with_classes(context, _registered_class)
    raise damaged(f"a tree of arguments holds a {tree.kind!r}", "no such node is known")


def _checked_attributes(context: Any) -> Any:
    """The context of a flattened object: its class, the names of its attributes, and attributes that are no values."""
    kind, names, *others = context if isinstance(context, list | tuple) and len(context) in (2, 3) else (None, ())
    is_sound = isinstance(kind, type) and isinstance(names, list | tuple) and all(isinstance(h, Held) for h in others)
    known = [*names, *(name for each in others for name in each.attributes)] if is_sound else [None]
    if not all(map(is_attribute_name, known)) or len(set(known)) < len(known):
        raise damaged("a tree of arguments is malformed", "the attributes of an object are not names")
    return context


def _namedtuple_class(name: str, fields: list[str]) -> Any:
    found = find_class(name)
    if pytree.is_namedtuple_class(found) and list(found._fields) == fields:
        return found
    try:
        return namedtuple(name.rpartition(".")[2].rpartition(":")[2], fields)
    except ValueError as problem:
        raise damaged(f"the named tuple {name!r} is malformed", str(problem)) from problem


def _registered_class(name: str) -> Any:
    found = registered_class(name)
    if found is None:
        raise ArtifactError(
            f"the program takes or returns a {name!r}, which is not registered here",
            why="a file names classes; loading it never imports code",
            fix="import the module that registers the class with torch.utils._pytree before loading",
        )
    return found[0]


def _class_to_open(name: str) -> Any:
    """A class whose objects are flattened into attributes: caches and records, but no other that a file might name."""
    found = find_class(name)
    if not isinstance(found, type) or not is_container_class(found):
        raise ArtifactError(
            f"the program takes or returns a {name!r}, which is not known here",
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
