"""The calling convention of an entry: the trees of its arguments and results, and the types of their leaves.

Also binds arguments, and refuses calls that do not fit: for files here, and for programs in ``graph.calls``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from precast.artifact.constants import NAMED
from precast.artifact.expressions import check_expression, symbols_of
from precast.artifact.schema import (
    ANYTHING,
    NOTHING,
    Count,
    Json,
    ListOf,
    OneOf,
    Shape,
    Text,
    brief,
    check_shape,
    damaged,
)
from precast.artifact.trees import Tree, read_tree
from precast.errors import ArgumentsError, CallMismatchError

MAX_LEAVES = 100_000
MAX_RANK = 16
MAX_PARTS = 500_000
"""The maximal number of terms in all expressions of a call, which are evaluated at each call."""
_NAME = Text(r"[^\x00-\x1f]{0,4096}")
_SYMBOL = Text(r"[A-Za-z_]\w{0,100}")
_BOUND = OneOf((Count(), NOTHING))
CALL_SHAPE: Shape = {
    "argument_names": ListOf(_NAME, MAX_LEAVES),
    "in_tree": ANYTHING,
    "out_tree": ANYTHING,
    "leaves": ListOf(ANYTHING, MAX_LEAVES),
    "results": ListOf(ANYTHING, MAX_LEAVES),
    "updates": ListOf(ListOf(Count(MAX_LEAVES), 2), MAX_LEAVES),
    "symbols": ListOf(
        {"symbol": _SYMBOL, "name": _NAME, "seen_at": _NAME, "range": ListOf(_BOUND, 2)},
        10_000,
    ),
    "guards": ListOf({"condition": ANYTHING, "at": OneOf((_NAME, NOTHING))}, 100_000),
}
_TENSOR_LEAF: Shape = {"dtype": Text(r"[a-z][a-z0-9_]{0,30}"), "shape": ListOf(ANYTHING, MAX_RANK)}


class TensorLeaf(NamedTuple):
    """A leaf that is a tensor; its sizes are numbers or expressions."""

    dtype: str
    shape: tuple[Json, ...]


class SizeLeaf(NamedTuple):
    """A leaf that is an integer, whose value must equal the expression."""

    expression: Json


class ConstantLeaf(NamedTuple):
    """A leaf that must have this value, or a result that always has."""

    value: Any


class OutputResult(NamedTuple):
    """A result that is an output of the program, by number."""

    number: int


class NumberResult(NamedTuple):
    """A result that is a Python number, the one element of an output of the program."""

    number: int


Leaf = TensorLeaf | SizeLeaf | ConstantLeaf
Result = OutputResult | NumberResult | SizeLeaf | ConstantLeaf


def size_identifier(name: str) -> str:
    """A size's name in letters, digits and underscores: ``batch``, ``x_dim_0`` for ``x.shape[0]``."""
    return re.sub(r"\W+", "_", re.sub(r"\W*\.shape\[(\d+)\]$", r"_dim_\1", name)).strip("_")


class SizeSymbol(NamedTuple):
    """A free size: its symbol, the user's name for it, where it first occurs, and its range."""

    symbol: str
    name: str
    seen_at: str
    lower: int
    upper: int | None

    def allows(self, size: int) -> bool:
        return self.lower <= size and (self.upper is None or size <= self.upper)

    @property
    def range_text(self) -> str:
        return f"{self.lower}..{'' if self.upper is None else self.upper}"


class Guard(NamedTuple):
    """A condition on sizes under which the program is valid, and the user's line that it comes from."""

    condition: Json
    at: str | None


@dataclass(frozen=True)
class CallDescription:
    """The original signature. `updates` says which outputs are the new values of which leaves: (output, leaf)."""

    argument_names: tuple[str, ...]
    in_tree: Tree
    out_tree: Tree
    leaves: tuple[Leaf, ...]
    results: tuple[Result, ...]
    updates: tuple[tuple[int, int], ...]
    symbols: tuple[SizeSymbol, ...]
    guards: tuple[Guard, ...]

    @cached_property
    def size_names(self) -> Mapping[str, str]:
        """The user's name of each symbol."""
        return {symbol.symbol: symbol.name for symbol in self.symbols}

    @cached_property
    def tensor_leaves(self) -> tuple[int, ...]:
        """The numbers of the leaves that are passed to the program, in its order."""
        return tuple(n for n, leaf in enumerate(self.leaves) if not isinstance(leaf, ConstantLeaf))


def read_call(content: Json, *, name: str) -> CallDescription:
    """Read a description, checking everything in it."""
    check_shape(content, CALL_SHAPE, name)
    assert isinstance(content, dict), "checked"
    record: Any = content
    symbols = tuple(_symbol(each) for each in record["symbols"])
    known = {symbol.symbol for symbol in symbols}
    parts = sum(check_expression(guard["condition"], known) for guard in record["guards"])
    parts += sum(check_expression(size, known) for size in _sizes(record))
    if parts > MAX_PARTS:
        raise damaged(f"{name} computes {parts} numbers from sizes", f"at most {MAX_PARTS} are allowed")
    call = CallDescription(
        tuple(record["argument_names"]),
        _argument_tree(record["in_tree"]),
        read_tree(record["out_tree"]),
        tuple(map(_leaf, record["leaves"])),
        tuple(map(_result, record["results"])),
        tuple((output, leaf) for output, leaf in map(_pair, record["updates"])),
        symbols,
        tuple(Guard(guard["condition"], guard["at"]) for guard in record["guards"]),
    )
    _check_counts(call, name)
    return call


def _sizes(record: Any) -> Iterator[Json]:
    """All sizes of leaves and results, as far as those are well-formed."""
    for each in (*record["leaves"], *record["results"]):
        match each:
            case {"tensor": {"shape": [*sizes]}}:
                yield from sizes
            case {"size": size}:
                yield size


def _argument_tree(content: Json) -> Tree:
    tree = read_tree(content)
    if [child.kind for child in tree.children] != ["tuple", "dict"]:
        raise damaged("the tree of arguments is malformed", "it holds positional and named arguments")
    return tree


def _pair(content: list[int]) -> tuple[int, int]:
    if len(content) != 2:
        raise damaged("an update is malformed", "it is the number of an output and of a leaf")
    return content[0], content[1]


def _check_counts(call: CallDescription, name: str) -> None:
    seen = {symbol for leaf in call.leaves for size in _sizes_of(leaf) for symbol in symbols_of(size)}
    unseen = {symbol for result in call.results for size in _sizes_of(result) for symbol in symbols_of(size)} - seen
    if unseen:
        raise damaged(f"{name} returns a size {min(unseen)!r}", "none of its arguments has that size")
    if call.in_tree.leaf_count() != len(call.leaves) or call.out_tree.leaf_count() != len(call.results):
        raise damaged(f"the trees of {name} do not fit its leaves", "their numbers differ")
    for _, leaf in call.updates:
        if leaf >= len(call.leaves) or not isinstance(call.leaves[leaf], TensorLeaf):
            raise damaged(f"{name} updates leaf {leaf}", "it has no such tensor")


def _sizes_of(leaf: Leaf | Result) -> tuple[Json, ...]:
    if isinstance(leaf, TensorLeaf):
        return leaf.shape
    return (leaf.expression,) if isinstance(leaf, SizeLeaf) else ()


def _symbol(record: Any) -> SizeSymbol:
    bounds = record["range"]
    if len(bounds) != 2 or bounds[0] is None or (bounds[1] is not None and bounds[1] < bounds[0]):
        raise damaged("the range of a size is malformed", f"it is {bounds}")
    return SizeSymbol(record["symbol"], record["name"], record["seen_at"], *bounds)


def _leaf(content: Any) -> Leaf:
    if isinstance(content, dict) and len(content) == 1:
        ((kind, inside),) = content.items()
        if kind == "tensor":
            check_shape(inside, _TENSOR_LEAF, "a leaf")
            return TensorLeaf(inside["dtype"], tuple(inside["shape"]))
        if kind in ("size", "constant"):
            return _size_or_constant(kind, inside)
    raise damaged("a leaf is malformed", f"it is {brief(content)}")


def _result(content: Any) -> Result:
    if isinstance(content, dict) and len(content) == 1:
        ((kind, inside),) = content.items()
        if kind in ("output", "number"):
            check_shape(inside, Count(MAX_LEAVES), "a result")
            return OutputResult(inside) if kind == "output" else NumberResult(inside)
        if kind in ("size", "constant"):
            return _size_or_constant(kind, inside)
    raise damaged("a result is malformed", f"it is {brief(content)}")


def _size_or_constant(kind: str, inside: Json) -> SizeLeaf | ConstantLeaf:
    return ConstantLeaf(NAMED.read(inside)) if kind == "constant" else SizeLeaf(inside)


def place_arguments(
    names: Sequence[str], keywords: Sequence[str], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Bind positional arguments that were passed by name, and vice versa, as the program has them."""
    while len(args) < len(names) and names[len(args)] in kwargs:
        args = (*args, kwargs.pop(names[len(args)]))
    missing = [key for key in keywords if key not in kwargs]
    if len(args) > len(names) and len(args) - len(names) <= len(missing):
        kwargs |= dict(zip(missing, args[len(names) :], strict=False))
        args = args[: len(names)]
    return args, kwargs


def argument_path(names: Sequence[str], positional: bool, key: int | str) -> str:
    """The user's name for an argument, or its position if the names are not known."""
    if not positional:
        return str(key)
    assert isinstance(key, int), "positional arguments are numbered"
    return names[key] if key < len(names) else f"args[{key}]"


def check_arguments(
    names: Sequence[str], positional: int, keywords: Sequence[str], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> None:
    """Refuse a bound call that lacks an argument or has one too many, and name it."""
    given = [argument_path(names, True, number) for number in range(len(args))]
    wanted = [argument_path(names, True, number) for number in range(positional)]
    missing = [*wanted[len(given) :], *(key for key in keywords if key not in kwargs)]
    unknown = [key for key in kwargs if key not in keywords]
    takes = ", ".join([*wanted, *(f"{key}=" for key in keywords)]) or "no arguments"
    if not missing and not unknown and len(args) == positional:
        return
    if unknown:
        twice = unknown[0] in given
        what = f"Got the argument {unknown[0]!r} twice." if twice else f"There is no argument {unknown[0]!r}."
    elif missing:
        what = f"Missing the argument{'s' * (len(missing) > 1)} {', '.join(map(repr, missing))}."
    else:
        what = f"Got {len(args)} positional arguments instead of {positional}."
    raise ArgumentsError(
        what,
        why=f"the program takes ({takes}); arguments that the example call left out are constants",
        fix="Pass exactly these arguments, or capture the program again with the others in the example.",
    )


def other_structure(expected: str, got: str) -> CallMismatchError:
    return CallMismatchError(
        "The arguments do not have the structure that the program was captured with.",
        why=f"expected {expected}, got {got}",
        fix="Call it with the same nesting of tuples, lists, dicts and keywords.",
    )


def other_constant(path: str, value: object, expected: object) -> CallMismatchError:
    return CallMismatchError(
        f"{path} is {value!r}, but the program was captured with {expected!r}.",
        why="Python values are constants of a captured program",
        fix="Pass the same value, or capture the program again with this one.",
    )


def other_tensor(path: str, came: str, needed: str) -> CallMismatchError:
    return CallMismatchError(
        f"{path} {came}, but the program was captured with {needed}.",
        why="its code was generated for the type, device and number of dimensions of the example",
        fix="Convert the argument, or capture the program again with such an example.",
    )


def other_sizes(wrong: Sequence[str]) -> CallMismatchError:
    return CallMismatchError(
        f"Guard failed: {'; '.join(wrong)}.",
        why="the program is valid for the sizes that it was captured with",
        fix="Pass tensors of these sizes, or capture it again with dynamic_shapes that include the new ones.",
    )
