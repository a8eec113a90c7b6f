"""Whether the leaves of one call fit a program: kinds, dtypes, ranks, sizes, ranges and what tracing assumed."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from precast.artifact.constants import is_same_constant
from precast.errors import InputValueError
from precast.graph.nodes import value_of
from precast.graph.program import Program
from precast.graph.signature import ConstantArgument, InputKind, InputSpec
from precast.graph.sizes import SymbolicSizes, bind_sizes
from precast.graph.tensor_spec import TensorSpec


@dataclass(frozen=True)
class Leaf:
    """One value of a call, and where it is in it (``args[0]['x']``)."""

    path: str
    value: Any


@dataclass(frozen=True)
class ExpectedConstant:
    """A leaf that must be this Python value."""

    value: object


ExpectedLeaf = TensorSpec | ExpectedConstant | None
"""What a leaf of a call must be; ``None`` for anything."""


def expected_leaves(program: Program) -> tuple[ExpectedLeaf, ...]:
    """What the leaves of a call must be, in order."""
    inputs = zip(program.signature.inputs, program.placeholders, strict=True)
    return tuple(_expected(spec, node) for spec, node in inputs if spec.kind is InputKind.USER_INPUT)


def check_leaves(expected: Sequence[ExpectedLeaf], sizes: SymbolicSizes, leaves: Sequence[Leaf]) -> None:
    """Raise an ``InputValueError`` that names the first leaf that does not fit, or all sizes that do not."""
    tensors: list[tuple[Leaf, TensorSpec]] = []
    for wanted, leaf in zip(expected, leaves, strict=True):
        if isinstance(wanted, ExpectedConstant):
            _check_constant(wanted.value, leaf)
        elif wanted is not None:
            _check_tensor(wanted, leaf)
            tensors.append((leaf, wanted))
    _check_sizes(sizes, tensors)


def _expected(spec: InputSpec, node: fx.Node) -> ExpectedLeaf:
    if isinstance(spec.arg, ConstantArgument):
        return ExpectedConstant(spec.arg.value)
    value = value_of(node)
    return TensorSpec.of(value) if isinstance(value, torch.Tensor) else None


def _check_constant(expected: object, leaf: Leaf) -> None:
    if is_same_constant(expected, leaf.value):
        return
    raise InputValueError(
        f"{leaf.path} is {leaf.value!r}, but the program was captured with {expected!r}.",
        why="Python values are constants of a captured program",
        fix="Pass the same value, or capture again.",
    )


def _check_tensor(expected: TensorSpec, leaf: Leaf) -> None:
    value = leaf.value
    if not isinstance(value, torch.Tensor):
        came, wanted = f"is {value!r}", f"a tensor, {expected}"
    elif value.dtype != expected.dtype:
        came, wanted = f"is {value.dtype}", str(expected.dtype)
    elif value.dim() != len(expected.shape):
        came, wanted = f"has {value.dim()} dimensions", f"{len(expected.shape)}: {expected}"
    elif value.device.type != expected.device.type:
        came, wanted = f"is on {value.device}", str(expected.device)
    else:
        return
    raise InputValueError(
        f"{leaf.path} {came}, but the program was captured with {wanted}.",
        why="the graph's operators were chosen for what the example was",
        fix="Pass a tensor of that kind, or capture again.",
    )


def _check_sizes(sizes: SymbolicSizes, tensors: Sequence[tuple[Leaf, TensorSpec]]) -> None:
    binding, mismatches = bind_sizes([spec.shape for _, spec in tensors], [leaf.value.shape for leaf, _ in tensors])
    wrong = []
    for tensor, dimension, size, came in mismatches:
        leaf, spec = tensors[tensor]
        wrong.append(f"{leaf.path}.shape[{dimension}] is {came}, but {_wanted_size(spec.shape[dimension], size)}")
    for symbol, came in sizes.out_of_range(binding):
        wrong.append(f"{symbol.seen_at} is {came}, outside of {symbol.name} in {symbol.range}")
    for guard in [] if wrong else sizes.failing_guards(binding):
        values = ", ".join(f"{s.name} = {binding[s.symbol]}" for s in sizes.symbols if s.symbol in binding)
        wrong.append(f"{guard.condition} does not hold for {values}" + (f" (asked at {guard.at})" if guard.at else ""))
    if wrong:
        raise InputValueError(
            f"{'; '.join(wrong)}.",
            why="the program is valid for the sizes that it was captured for",
            fix="Pass tensors of such sizes, or capture again with other dynamic_shapes.",
        )


def _wanted_size(promised: object, size: int | None) -> str:
    if isinstance(promised, int):
        return f"the program was captured with {promised}"
    return f"it must be {promised}" if size is None else f"the other sizes make it {size}"
