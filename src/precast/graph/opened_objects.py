"""Objects of third-party classes as pytree nodes of their attributes: caches, dataclasses, and the like.

Before: ``model(ids, past_key_values=cache)``, where the cache is one leaf to torch's pytree
After:  ``opened`` puts ``Opened(cache)`` in its place: its children are the attributes; unflattening returns a cache

An object of a class that extends dict, list, deque or tuple has one attribute more: ``ITEMS``, what it contains.

Nothing is registered for the classes themselves: that is up to their owners, whose registrations take precedence.
"""

import enum
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
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
"""Leaves that are not tensors: values that a program is specialized to."""

_NEVER_OPENED = (
    torch.Tensor, *PLAIN_TYPES, torch.nn.Module, torch.optim.Optimizer, torch.Stream,
    BuiltinFunctionType, FunctionType, MethodType, ModuleType,
)  # fmt: skip
_VALUES = (torch.Tensor, *PLAIN_TYPES)
_USUAL_LEAVES = {torch.Tensor, bool, int, float, str, type(None), torch.dtype, torch.device}

ITEMS = "items()"
"""Where an object that is a dict, a list, a deque or a tuple itself has what it holds as such; no name in Python."""

IsLeaf = Callable[[Any], bool]
Context = tuple[Any, ...]


class Opened:
    """An object, seen as a container; ``is_leaf`` is true for values inside it that are not opened."""

    __slots__ = ("is_leaf", "object")

    def __init__(self, object: Any, is_leaf: IsLeaf | None = None) -> None:
        self.object, self.is_leaf = object, is_leaf


class Held:
    """Attributes that are not leaves, such as classes, which a program can only pass on. Compared by identity."""

    def __init__(self, attributes: dict[str, Any]) -> None:
        self.attributes = attributes

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Held) and _identities(self.attributes) == _identities(other.attributes)

    def __hash__(self) -> int:
        return hash(tuple(self.attributes))


def _identities(attributes: dict[str, Any]) -> dict[str, int]:
    return {name: id(value) for name, value in attributes.items()}


def flatten_opened(value: Any) -> tuple[list[Any], pytree.TreeSpec]:
    """The leaves and the tree of ``value`` with its objects opened; free if there are none."""
    leaves, tree = pytree.tree_flatten(value)
    kinds = set(map(type, leaves)) - _USUAL_LEAVES
    if not kinds or not any(is_object(leaf) for leaf in leaves if type(leaf) in kinds):
        return leaves, tree
    return pytree.tree_flatten(opened(value))


def repeated_tensors(leaves: Sequence[Any]) -> dict[int, int]:
    """The positions of tensors that come again, with the first position of each."""
    first: dict[int, int] = {}
    for position, leaf in enumerate(leaves):
        if isinstance(leaf, torch.Tensor):
            first.setdefault(id(leaf), position)
    repeated = ((position, first.get(id(leaf), position)) for position, leaf in enumerate(leaves))
    return {position: earlier for position, earlier in repeated if earlier != position}


def unflatten(leaves: Iterator[Any], tree: pytree.TreeSpec) -> Any:
    """The value again. Torch's pytree makes a tuple of a ``torch.Size``."""
    if tree.is_leaf():
        return next(leaves)
    children = [unflatten(leaves, child) for child in tree.children()]
    return unflatten_node(tree.type)(children, tree.context)


def unflatten_node(kind: Any) -> Callable[[Sequence[Any], Any], Any]:
    """What makes a container of that kind of its children and its context."""
    make: Callable[[Any, Any], Any] = pytree.SUPPORTED_NODES[kind].unflatten_fn
    return _make_size if kind is torch.Size else make


def _make_size(children: Sequence[Any], _: Any) -> torch.Size:
    return torch.Size(children)


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
    parts = attributes(leaf)
    if ITEMS in parts and (getattr(leaf, "__dict__", None) is leaf or not _is_tree_of_leaves(parts[ITEMS], None)):
        return False
    return any(_holds_tensors(value) for value in parts.values())


_is_known_kind: dict[type, bool] = {}


def is_container_class(kind: type) -> bool:
    """Whether objects of the class are always opened, even without tensors: a cache is empty at first."""
    return not issubclass(kind, _NEVER_OPENED) and classes.is_container_class(kind)


def _holds_tensors(value: Any) -> bool:
    return any(isinstance(leaf, torch.Tensor) for leaf in pytree.tree_leaves(value))


def attributes(value: Any) -> dict[str, Any]:
    """The object's attributes, those in slots included, and under ``ITEMS`` what it contains as a builtin container."""
    found: dict[str, Any] = {}
    # Not by methods that the class may have replaced.
    if isinstance(value, dict):
        found[ITEMS] = dict(dict.items(value))
    elif isinstance(value, list):
        found[ITEMS] = list(list.__iter__(value))
    elif isinstance(value, deque):
        found[ITEMS] = list(deque.__iter__(value))
    elif isinstance(value, tuple):
        found[ITEMS] = tuple(tuple.__iter__(value))
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
    # The second check takes ten times as long, and every call checks every attribute.
    return type(value) in _USUAL_LEAVES or isinstance(value, _VALUES)


def set_attributes(value: Any, new: dict[str, Any]) -> None:
    """Assign attributes, even of frozen objects."""
    for name, part in new.items():
        if name == ITEMS:
            _set_items(value, part)
        else:
            object.__setattr__(value, name, part)


def _set_items(value: Any, items: Any) -> None:
    if isinstance(value, dict):
        kind = OrderedDict if isinstance(value, OrderedDict) else dict
        kind.clear(value)
        for key, item in items.items():
            kind.__setitem__(value, key, item)
    elif isinstance(value, (list, deque)):
        sequence: Any = list if isinstance(value, list) else deque
        sequence.clear(value)
        sequence.extend(value, items)


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
    """The pytree keys of a node's children; empty if its class has none."""
    if tree.type is Opened:
        return tuple(map(pytree.GetAttrKey, tree.context[1]))
    node = pytree.SUPPORTED_NODES[tree.type]
    if node.flatten_with_keys_fn is None:
        return ()
    try:
        instance = node.unflatten_fn(list(range(tree.num_children)), tree.context)
    except (TypeError, AttributeError, ValueError, LookupError):
        # The class looks into its parts, which are numbers here.
        return ()
    keyed, _ = node.flatten_with_keys_fn(instance)
    return tuple(key for key, _ in keyed)


def leaf_paths(tree: pytree.TreeSpec) -> list[tuple[Any, ...]]:
    """The path to each leaf of a tree, through opened objects too."""
    if tree.is_leaf():
        return [()]
    keys = child_keys(tree) or tuple(map(pytree.SequenceKey, range(tree.num_children)))
    below = zip(keys, tree.children(), strict=True)
    return [(key, *path) for key, child in below for path in leaf_paths(child)]


def result_names(tree: pytree.TreeSpec) -> list[str]:
    """A name for each leaf of a result, from its path: ``logits``, ``output_0``; ``output`` for a single leaf."""
    paths = map(_path_words, leaf_paths(tree))
    return ["_".join(path if path and not path[0].isdigit() else ["output", *path]) for path in paths]


def argument_leaf_names(tree: pytree.TreeSpec, names: Sequence[str]) -> list[str]:
    """A name for each leaf of a call ``(args, kwargs)``: ``x``, ``batch_mask``; ``names`` are the arguments'."""
    paths = map(_path_words, leaf_paths(tree))
    return ["_".join([names[int(top)] if kind == "0" else top, *rest]) for kind, top, *rest in paths]


def _path_words(path: Sequence[Any]) -> list[str]:
    words = [str(getattr(key, "key", getattr(key, "idx", getattr(key, "name", key)))) for key in path]
    return [word for word in words if word != ITEMS]


def unflatten_object(children: Iterable[Any], context: Context) -> Any:
    """Rebuild the object without calling its constructor."""
    kind, names, *held = context
    parts = dict(zip(names, children, strict=True))
    made = tuple.__new__(kind, parts[ITEMS]) if issubclass(kind, tuple) else kind.__new__(kind)
    for name, child in parts.items():
        is_counter = name in classes.COUNTERS and isinstance(child, torch.Tensor) and child.dim() == 2
        parts[name] = child.shape[0] if is_counter else child
    set_attributes(made, parts)
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
