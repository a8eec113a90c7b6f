"""Objects of other people's classes as containers of what their attributes hold: caches, dataclasses, and the like.

Before: ``model(ids, past_key_values=cache)``, where the cache is one leaf to torch's pytree
After:  ``opened`` puts ``Opened(cache)`` in its place: its children are the attributes, and unflattening gives a cache

Nothing is registered for the classes themselves: that is for their owners to do, and what they say comes first.
"""

import enum
from collections.abc import Callable, Iterable, Sequence
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from precast.artifact import trees as classes

PLAIN_TYPES = (
    int, float, complex, bool, str, bytes, type(None), enum.Enum, type, slice, range, type(...),
    torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Generator,
    torch.SymInt, torch.SymFloat, torch.SymBool,
)  # fmt: skip
"""Leaves that are no tensors: values which a program is compiled for."""

_NEVER_OPENED = (
    torch.Tensor, *PLAIN_TYPES, torch.nn.Module, torch.optim.Optimizer, torch.Stream,
    BuiltinFunctionType, FunctionType, MethodType, ModuleType,
)  # fmt: skip
_VALUES = (torch.Tensor, *PLAIN_TYPES)
_USUAL_LEAVES = {torch.Tensor, bool, int, float, str, type(None), torch.dtype, torch.device}

IsLeaf = Callable[[Any], bool]
Context = tuple[Any, ...]


class Opened:
    """An object, seen as a container; ``is_leaf`` says what inside of it is left closed."""

    __slots__ = ("is_leaf", "object")

    def __init__(self, object: Any, is_leaf: IsLeaf | None = None) -> None:
        self.object, self.is_leaf = object, is_leaf


class Held:
    """Attributes that a program can do nothing with but hand on: classes, say. Objects that hold others are others."""

    def __init__(self, attributes: dict[str, Any]) -> None:
        self.attributes = attributes

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Held) and _identities(self.attributes) == _identities(other.attributes)

    def __hash__(self) -> int:
        return hash(tuple(self.attributes))


def _identities(attributes: dict[str, Any]) -> dict[str, int]:
    return {name: id(value) for name, value in attributes.items()}


def flatten_opened(value: Any) -> tuple[list[Any], pytree.TreeSpec]:
    """The leaves and the tree of ``value`` with its objects opened, at no cost where there are none."""
    leaves, tree = pytree.tree_flatten(value)
    kinds = set(map(type, leaves)) - _USUAL_LEAVES
    if not kinds or not any(is_object(leaf) for leaf in leaves if type(leaf) in kinds):
        return leaves, tree
    return pytree.tree_flatten(opened(value))


def opened(value: Any, is_leaf: IsLeaf | None = None) -> Any:
    """``value`` with ``Opened`` around the objects in it; ``value`` itself where there are none."""
    leaves = pytree.tree_leaves(value, is_leaf=is_leaf)
    if not any(is_object(leaf) for leaf in leaves if type(leaf) is not torch.Tensor):
        return value
    return pytree.tree_map(lambda leaf: _opened_leaf(leaf, is_leaf), value, is_leaf=is_leaf)


def _opened_leaf(leaf: Any, is_leaf: IsLeaf | None) -> Any:
    return leaf if (is_leaf is not None and is_leaf(leaf)) or not is_object(leaf) else Opened(leaf, is_leaf)


def is_object(leaf: Any) -> bool:
    """Whether a leaf of torch's pytree is an object that can be opened."""
    kind = type(leaf)
    known = _is_known_kind.get(kind)
    if known is None:
        known = _is_known_kind[kind] = is_container_class(kind)
    if known or issubclass(kind, _NEVER_OPENED) or kind.__module__.partition(".")[0] in ("torch", "numpy", "builtins"):
        return known
    return any(_holds_tensors(value) for value in attributes(leaf).values())


_is_known_kind: dict[type, bool] = {}


def is_container_class(kind: type) -> bool:
    """Whether objects of the class are opened whatever they hold: a cache is empty at first."""
    return not issubclass(kind, _NEVER_OPENED) and classes.is_container_class(kind)


def _holds_tensors(value: Any) -> bool:
    return any(isinstance(leaf, torch.Tensor) for leaf in pytree.tree_leaves(value))


def attributes(value: Any) -> dict[str, Any]:
    """What the object's attributes hold, those in slots included."""
    found: dict[str, Any] = {}
    for kind in type(value).__mro__:
        slots = vars(kind).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name not in ("__dict__", "__weakref__") and hasattr(value, name):
                found[name] = getattr(value, name)
    found.update(getattr(value, "__dict__", ()))
    return found


def object_parts(value: Any, is_leaf: IsLeaf | None = None) -> tuple[dict[str, Any], dict[str, Any]]:
    """The attributes that are leaves or containers of leaves, in the order of their names, and the others."""
    parts: dict[str, Any] = {}
    held: dict[str, Any] = {}
    for name, part in sorted(attributes(value).items()):
        is_part = not isinstance(part, type) and _is_tree_of_leaves(part, is_leaf)
        (parts if is_part else held)[name] = part
    return parts, held


def _is_tree_of_leaves(value: Any, is_leaf: IsLeaf | None) -> bool:
    if is_value(value):
        return True
    leaves = pytree.tree_leaves(value, is_leaf=is_leaf)
    return all(is_value(leaf) or (is_leaf and is_leaf(leaf)) or is_object(leaf) for leaf in leaves)


def is_value(value: Any) -> bool:
    """Whether it is a tensor or a plain value."""
    # The second question takes ten times as long, and every call asks about every attribute.
    return type(value) in _USUAL_LEAVES or isinstance(value, _VALUES)


def set_attributes(value: Any, new: dict[str, Any]) -> None:
    """Assign attributes, of frozen objects too."""
    for name, part in new.items():
        object.__setattr__(value, name, part)


def _flatten(node: Opened) -> tuple[list[Any], Context]:
    parts, held = object_parts(node.object, node.is_leaf)
    children = [_child(name, part, node.is_leaf) for name, part in parts.items()]
    context = (type(node.object), tuple(parts))
    return children, (*context, Held(held)) if held else context


def _child(name: str, part: Any, is_leaf: IsLeaf | None) -> Any:
    if name in classes.COUNTERS and isinstance(part, (int, torch.SymInt)):
        return torch.empty((part, 0))
    return part if is_value(part) else opened(part, is_leaf)


def _flatten_with_keys(node: Opened) -> tuple[list[tuple[Any, Any]], Context]:
    children, context = _flatten(node)
    return [(pytree.GetAttrKey(name), child) for name, child in zip(context[1], children, strict=True)], context


def child_keys(tree: pytree.TreeSpec) -> tuple[Any, ...]:
    """What a node of a tree calls its children, as keys of a pytree's path; nothing if its class does not say."""
    if tree.type is Opened:
        return tuple(map(pytree.GetAttrKey, tree.context[1]))
    node = pytree.SUPPORTED_NODES[tree.type]
    if node.flatten_with_keys_fn is None:
        return ()
    instance = node.unflatten_fn(list(range(tree.num_children)), tree.context)
    keyed, _ = node.flatten_with_keys_fn(instance)
    return tuple(key for key, _ in keyed)


def leaf_paths(tree: pytree.TreeSpec) -> list[tuple[Any, ...]]:
    """The path to each leaf of a tree, its objects opened."""
    if tree.is_leaf():
        return [()]
    keys = child_keys(tree) or tuple(map(pytree.SequenceKey, range(tree.num_children)))
    below = zip(keys, tree.children(), strict=True)
    return [(key, *path) for key, child in below for path in leaf_paths(child)]


def result_names(tree: pytree.TreeSpec) -> list[str]:
    """What people call each leaf of a result, after its place: ``logits``, ``output_0``; the whole is ``output``."""
    paths = map(_path_words, leaf_paths(tree))
    return ["_".join(path if path and not path[0].isdigit() else ["output", *path]) for path in paths]


def argument_leaf_names(tree: pytree.TreeSpec, names: Sequence[str]) -> list[str]:
    """What people call each leaf of a call ``(args, kwargs)``: ``x``, ``batch_mask``; ``names`` are the arguments'."""
    paths = map(_path_words, leaf_paths(tree))
    return ["_".join([names[int(top)] if kind == "0" else top, *rest]) for kind, top, *rest in paths]


def _path_words(path: Sequence[Any]) -> list[str]:
    return [str(getattr(key, "key", getattr(key, "idx", getattr(key, "name", key)))) for key in path]


def unflatten_object(children: Iterable[Any], context: Context) -> Any:
    """The object again, made without its constructor."""
    kind, names, *held = context
    made = kind.__new__(kind)
    for name, child in zip(names, children, strict=True):
        is_counter = name in classes.COUNTERS and isinstance(child, torch.Tensor) and child.dim() == 2
        object.__setattr__(made, name, child.shape[0] if is_counter else child)
    for others in held:
        set_attributes(made, others.attributes)
    return made


pytree.register_pytree_node(
    Opened,
    _flatten,
    unflatten_object,
    serialized_type_name="precast.Opened",
    flatten_with_keys_fn=_flatten_with_keys,
)


def is_wrapper(value: Any) -> bool:
    """Whether ``value`` is a tensor subclass that is made of inner tensors."""
    return isinstance(value, torch.Tensor) and is_traceable_wrapper_subclass(value)
