"""How an exported program is called: which tree of arguments it takes, and what their leaves must be.

A call may order its keywords freely, and may give what fx makes of dicts and lists for dicts and lists.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._subclasses.fake_tensor import is_fake
from torch.fx.immutable_collections import immutable_dict, immutable_list
from torch.utils import _pytree as pytree

from precast.errors import InputValueError
from precast.graph.input_checks import ExpectedLeaf, Leaf, check_leaves
from precast.graph.opened_objects import opened
from precast.graph.sizes import SymbolicSizes
from precast.graph.tensor_spec import TensorSpec


@dataclass(frozen=True)
class CallConvention:
    """Checks calls, and puts them into the exact form that the graph takes.

    ``argument_names`` are the names of all arguments, positional ones first.
    """

    in_tree: pytree.TreeSpec
    expected: tuple[ExpectedLeaf, ...]
    sizes: SymbolicSizes
    argument_names: tuple[str, ...]

    def normalized(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The same call with its keywords in order, plain containers and opened objects, once it is known to fit."""
        call: tuple[tuple[Any, ...], dict[str, Any]] = opened(_plain(self._placed(tuple(args), dict(kwargs))))
        with_paths, tree = pytree.tree_flatten_with_path(call)
        if not same_tree(tree, self.in_tree):
            raise InputValueError(
                "The arguments do not have the structure that the program was exported with.",
                why=f"expected {tree_text(self.in_tree)}, got {tree_text(tree)}",
                fix="Call it with the same nesting of tuples, lists, dicts and keywords.",
            )
        leaves = [Leaf(path_text(path), value) for path, value in with_paths]
        if any(is_fake(leaf.value) for leaf in leaves):
            _specialize(self.expected, leaves)
        else:
            check_leaves(self.expected, self.sizes, leaves)
        return call

    def _placed(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Positional arguments that were given by name, and the other way round, where the program has them."""
        positional, named = self.in_tree.children()
        names = self.argument_names[: positional.num_children]
        while len(args) < len(names) and names[len(args)] in kwargs:
            args = (*args, kwargs.pop(names[len(args)]))
        given = [key for key in named.context if key not in kwargs]
        if len(args) > len(names) and len(args) - len(names) <= len(given):
            kwargs |= dict(zip(given, args[len(names) :], strict=False))
            args = args[: len(names)]
        ordered = [key for key in named.context if key in kwargs]
        return args, {key: kwargs[key] for key in [*ordered, *(key for key in kwargs if key not in ordered)]}


def _plain(value: Any) -> Any:
    """``value`` with fx's immutable containers as the containers that they stand for."""
    if isinstance(value, (immutable_dict, immutable_list)):
        return _plain(dict(value) if isinstance(value, immutable_dict) else list(value))
    if type(value) is dict:
        return {key: _plain(item) for key, item in value.items()}
    return type(value)(map(_plain, value)) if type(value) in (list, tuple) else value


def path_text(path: Sequence[Any]) -> str:
    """Where a leaf is in a call, such as ``args[0]['x']``."""
    return f"{'args' if path[0].idx == 0 else 'kwargs'}{pytree.keystr(tuple(path[1:]))}"


def same_tree(left: pytree.TreeSpec, right: pytree.TreeSpec) -> bool:
    """Whether two trees hold the same; a class that was loaded under another identity counts by its name."""
    if left == right:
        return True
    if left.is_leaf() or right.is_leaf() or left.num_children != right.num_children:
        return False
    if _kind(left) != _kind(right):
        return False
    return all(map(same_tree, left.children(), right.children()))


def _kind(tree: pytree.TreeSpec) -> object:
    if pytree.is_namedtuple_class(tree.context):
        return ("namedtuple", tree.context.__name__, tree.context._fields)
    return tree.type, tree.context


def tree_text(tree: pytree.TreeSpec) -> str:
    """A tree as people write it: ``(*, {'mask': *})``."""
    if tree.is_leaf():
        return "*"
    children = [tree_text(child) for child in tree.children()]
    if tree.type in (tuple, list):
        opening, closing = ("(", ")") if tree.type is tuple else ("[", "]")
        return opening + ", ".join(children) + ("," if tree.type is tuple and len(children) == 1 else "") + closing
    if tree.type is dict:
        return "{" + ", ".join(f"{key!r}: {child}" for key, child in zip(tree.context, children, strict=True)) + "}"
    name = getattr(tree.context, "__name__", None) or getattr(tree.type, "__name__", str(tree.type))
    return f"{name}({', '.join(children)})"


def _specialize(expected: Sequence[ExpectedLeaf], leaves: Sequence[Leaf]) -> None:
    """While the module is traced again, sizes that are fixed in its graph become fixed in the new one."""
    for wanted, leaf in zip(expected, leaves, strict=True):
        if not isinstance(wanted, TensorSpec) or not isinstance(leaf.value, torch.Tensor):
            continue
        for dimension, size in enumerate(wanted.shape):
            if isinstance(size, int) and dimension < leaf.value.dim() and leaf.value.shape[dimension] != size:
                raise InputValueError(
                    f"{leaf.path}.shape[{dimension}] is {leaf.value.shape[dimension]}, but the program has {size}.",
                    why="the program that is exported again is valid for that size alone",
                    fix="Export the original module with that dimension dynamic.",
                )
