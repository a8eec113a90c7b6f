"""How a captured program is called: which tree of arguments it takes, and what their leaves must be.

Keywords may come in any order, and fx's immutable dicts and lists count as dicts and lists. Leaves are checked for
kind, dtype, rank, sizes, ranges and guards. ``runtime.call`` is the counterpart for files, without torch: its
expressions are JSON where these are sympy's.
"""

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
from torch.fx.immutable_collections import immutable_dict, immutable_list
from torch.utils import _pytree as pytree

from precast.artifact.calls import (
    argument_path,
    check_arguments,
    other_constant,
    other_sizes,
    other_structure,
    other_tensor,
    place_arguments,
)
from precast.artifact.constants import is_same_constant
from precast.artifact.trees import node_text
from precast.errors import InputValueError
from precast.graph.module_arguments import with_module_arguments
from precast.graph.nodes import value_of
from precast.graph.opened_objects import opened
from precast.graph.program import Program
from precast.graph.signature import ConstantArgument, InputKind, InputSpec
from precast.graph.sizes import SymbolicSizes, bind_sizes
from precast.graph.symbolic_calls import restrictions
from precast.graph.tensor_spec import Size, TensorSpec, as_size

_aten = torch.ops.aten


@dataclass(frozen=True)
class Leaf:
    """One value of a call, and its path in the call (``batch['x']``)."""

    path: str
    value: Any


@dataclass(frozen=True)
class ExpectedConstant:
    """A leaf that must be this Python value."""

    value: object


@dataclass(frozen=True)
class ExpectedNumber:
    """A leaf that is any integer that the expression allows."""

    size: Size


@dataclass(frozen=True)
class ExpectedIntegers(TensorSpec):
    """An int32 leaf that may be int64 as well: the program uses its elements only as numbers or as indices."""


ExpectedLeaf = TensorSpec | ExpectedConstant | ExpectedNumber | None
"""What a leaf of a call must be; ``None`` for anything."""


def expected_leaves(program: Program) -> tuple[ExpectedLeaf, ...]:
    """What the leaves of a call must be, in order."""
    inputs = zip(program.signature.inputs, program.placeholders, strict=True)
    return tuple(_expected(spec, node) for spec, node in inputs if spec.kind is InputKind.USER_INPUT)


@dataclass(frozen=True)
class CallConvention:
    """Checks calls, and normalizes them to the exact form that the graph takes.

    ``argument_names`` are the names of all arguments, positional ones first; empty if they are unknown.
    """

    in_tree: pytree.TreeSpec
    expected: tuple[ExpectedLeaf, ...]
    sizes: SymbolicSizes
    argument_names: tuple[str, ...] = ()

    def normalized(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], *, checks_leaves: bool = True
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The call with keywords in order, plain containers and opened objects. Raises if it does not fit."""
        positional, named = with_module_arguments((tuple(args), dict(kwargs)))
        placed = _ordered(_plain(self._placed(positional, named)), self.in_tree)
        call: tuple[tuple[Any, ...], dict[str, Any]] = opened(placed)
        with_paths, tree = pytree.tree_flatten_with_path(call)
        if not _same_tree(tree, self.in_tree):
            raise other_structure(_tree_text(self.in_tree), _tree_text(tree))
        leaves = [Leaf(self._path_text(path), value) for path, value in with_paths]
        if checks_leaves:
            check_leaves(self.expected, self.sizes, leaves)
        return call

    def _placed(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments at the program's positions, and the keywords in the program's order."""
        positional, named = self.in_tree.children()
        names = self.argument_names[: positional.num_children]
        args, kwargs = place_arguments(names, named.context, args, kwargs)
        check_arguments(names, positional.num_children, named.context, args, kwargs)
        ordered = [key for key in named.context if key in kwargs]
        return args, {key: kwargs[key] for key in [*ordered, *(key for key in kwargs if key not in ordered)]}

    def _path_text(self, path: Sequence[Any]) -> str:
        """The path of a leaf in a call, such as ``batch['x']``."""
        kind, top, *rest = path
        argument = argument_path(self.argument_names, kind.idx == 0, top.idx if kind.idx == 0 else top.key)
        return f"{argument}{pytree.keystr(tuple(rest))}"


def _plain(value: Any) -> Any:
    """``value`` with fx's immutable containers replaced by dicts and lists."""
    if isinstance(value, (immutable_dict, immutable_list)):
        return _plain(dict(value) if isinstance(value, immutable_dict) else list(value))
    if type(value) is dict:
        return {key: _plain(item) for key, item in value.items()}
    return type(value)(map(_plain, value)) if type(value) in (list, tuple) else value


def _ordered(value: Any, tree: pytree.TreeSpec) -> Any:
    """``value`` with the entries of its dicts in the order of the tree."""
    if tree.is_leaf() or type(value) is not tree.type or type(value) not in (dict, list, tuple):
        return value
    if type(value) is dict:
        if value.keys() != set(tree.context):
            return value
        return {key: _ordered(value[key], child) for key, child in zip(tree.context, tree.children(), strict=True)}
    if len(value) != tree.num_children:
        return value
    return type(value)(map(_ordered, value, tree.children()))


def _same_tree(left: pytree.TreeSpec, right: pytree.TreeSpec) -> bool:
    """Whether two trees are the same; namedtuple classes that were loaded twice are compared by name and fields."""
    if left == right:
        return True
    if left.is_leaf() or right.is_leaf() or left.num_children != right.num_children:
        return False
    if _kind(left) != _kind(right):
        return False
    return all(map(_same_tree, left.children(), right.children()))


def _kind(tree: pytree.TreeSpec) -> object:
    if pytree.is_namedtuple_class(tree.context):
        return ("namedtuple", tree.context.__name__, tree.context._fields)
    return tree.type, tree.context


def _tree_text(tree: pytree.TreeSpec) -> str:
    if tree.is_leaf():
        return "*"
    kind = getattr(tree.type, "__name__", str(tree.type))
    name = getattr(tree.context, "__name__", None) or kind
    keys = tree.context if tree.type is dict else ()
    return node_text(kind, keys, [_tree_text(child) for child in tree.children()], name)


def _is_symbolic(size: object) -> bool:
    return isinstance(size, torch.SymInt)


def check_leaves(expected: Sequence[ExpectedLeaf], sizes: SymbolicSizes, leaves: Sequence[Leaf]) -> None:
    """Raise an ``InputValueError`` that names the first leaf that does not fit, or all sizes that do not.

    While the program is traced again, symbolic sizes are restricted to those that fit.
    """
    sized: list[_Sized] = []
    for wanted, leaf in zip(expected, leaves, strict=True):
        if isinstance(wanted, ExpectedConstant):
            _check_constant(wanted.value, leaf)
        elif isinstance(wanted, ExpectedNumber):
            _check_number(leaf)
            sized.append(_Sized(leaf.path, (wanted.size,), (leaf.value,)))
        elif wanted is not None:
            _check_tensor(wanted, leaf, sizes)
            sized.append(_Sized(leaf.path, wanted.shape, tuple(leaf.value.shape), are_dimensions=True))
    if any(_is_symbolic(size) for each in sized for size in each.actual):
        _restrict_sizes(sizes, sized)
    else:
        _check_sizes(sizes, sized)


@dataclass(frozen=True)
class _Sized:
    """The expected and the actual sizes of one leaf: the dimensions of a tensor, or one number."""

    path: str
    expected: tuple[Size, ...]
    actual: tuple[int, ...]
    are_dimensions: bool = False

    def place(self, number: int) -> str:
        return f"{self.path}.shape[{number}]" if self.are_dimensions else self.path


def _expected(spec: InputSpec, node: fx.Node) -> ExpectedLeaf:
    if isinstance(spec.arg, ConstantArgument):
        return ExpectedConstant(spec.arg.value)
    value = value_of(node)
    if isinstance(value, torch.SymInt):
        return ExpectedNumber(as_size(value))
    if not isinstance(value, torch.Tensor):
        return None
    found = TensorSpec.of(value)
    if value.dtype is torch.int32 and node.users and _is_read_as_numbers(node):
        return ExpectedIntegers(**vars(found))
    return found


_LOOKING_UP = {_aten.embedding.default, _aten.index.Tensor, _aten.index_select.default, _aten.select.int}
_READING = {_aten.item.default, _aten._local_scalar_dense.default, _aten.sym_size.int}
_PASSING_ON = {
    operator.getitem, _aten.unbind.int, _aten.select.int, _aten.slice.Tensor, _aten.view.default,
    _aten.reshape.default, _aten.squeeze.dim, _aten.unsqueeze.default,
}  # fmt: skip


def _is_read_as_numbers(node: fx.Node) -> bool:
    """Whether no user of the tensor depends on its dtype."""
    return all(
        user.target in _READING
        or (user.target in _LOOKING_UP and user.args[0] is not node)
        or (user.target in _PASSING_ON and user.args[0] is node and _is_read_as_numbers(user))
        for user in node.users
    )


def _check_constant(expected: object, leaf: Leaf) -> None:
    if not is_same_constant(expected, leaf.value):
        raise other_constant(leaf.path, leaf.value, expected)


def _check_number(leaf: Leaf) -> None:
    if not isinstance(leaf.value, int | torch.SymInt) or isinstance(leaf.value, bool):
        raise other_tensor(leaf.path, f"is {leaf.value!r}", "a whole number")


def _check_tensor(expected: TensorSpec, leaf: Leaf, sizes: SymbolicSizes) -> None:
    value, text = leaf.value, sizes.in_words(expected)
    if not isinstance(value, torch.Tensor):
        came, wanted = f"is {value!r}", f"a tensor, {text}"
    elif value.dtype != expected.dtype and not (isinstance(expected, ExpectedIntegers) and value.dtype is torch.int64):
        came, wanted = f"is {value.dtype}", str(expected.dtype)
    elif value.dim() != len(expected.shape):
        came, wanted = f"has {value.dim()} dimensions", f"{len(expected.shape)}: {text}"
    elif value.device.type != expected.device.type:
        came, wanted = f"is on {value.device}", str(expected.device)
    else:
        return
    raise other_tensor(leaf.path, came, wanted)


def _check_sizes(sizes: SymbolicSizes, sized: Sequence[_Sized]) -> None:
    binding, mismatches = bind_sizes([each.expected for each in sized], [each.actual for each in sized])
    wrong = []
    for number, dimension, size, came in mismatches:
        each = sized[number]
        wrong.append(
            f"{each.place(dimension)} is {came}, but {sizes.in_words(_wanted_size(each.expected[dimension], size))}"
        )
    for symbol, came in sizes.out_of_range(binding):
        wrong.append(f"{symbol.seen_at} is {came}, outside of {symbol.name} in {symbol.range}")
    for guard in [] if wrong else sizes.failing_guards(binding):
        values = ", ".join(f"{s.name} = {binding[s.symbol]}" for s in sizes.symbols if s.symbol in binding)
        wrong.append(
            f"{sizes.in_words(guard.condition)} does not hold for {values}"
            + (f" (asked at {guard.at})" if guard.at else "")
        )
    if wrong:
        raise other_sizes(wrong)


def _restrict_sizes(sizes: SymbolicSizes, sized: Sequence[_Sized]) -> None:
    """Tell torch what must hold for symbolic sizes: it becomes a condition of what is being traced."""
    pairs = [
        (each.place(number), expected, actual)
        for each in sized
        for number, (expected, actual) in enumerate(zip(each.expected, each.actual, strict=True))
    ]
    for condition, text in restrictions(sizes, pairs):
        if free_unbacked_symbols(condition):
            torch._check(condition, lambda text=text: text)
        elif not condition:
            raise InputValueError(
                text,
                why="the program that is traced again is valid only for such sizes",
                fix="Trace the original module, with that size dynamic.",
            )


def _wanted_size(promised: object, size: int | None) -> str:
    if isinstance(promised, int):
        return f"the program was captured with {promised}"
    return f"it must be {promised}" if size is None else f"the other sizes make it {size}"
