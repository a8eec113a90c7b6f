"""Whether the leaves of one call fit a program: kinds, dtypes, ranks, sizes, ranges and what tracing assumed."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from precast.errors import InputValueError
from precast.ir.node_meta import value_of
from precast.ir.program import Program
from precast.ir.signature import ConstantArgument, InputKind, InputSpec
from precast.ir.sizes import bind_sizes
from precast.ir.tensor_spec import TensorSpec


@dataclass(frozen=True)
class Leaf:
    """One value of a call, and where it is in it (``args[0]['x']``)."""

    path: str
    value: Any


def check_leaves(program: Program, leaves: Sequence[Leaf]) -> None:
    """Raise an ``InputValueError`` that names the first leaf that does not fit, or all sizes that do not."""
    inputs = zip(program.signature.inputs, program.placeholders, strict=True)
    wanted = [(spec, node) for spec, node in inputs if spec.kind is InputKind.USER_INPUT]
    tensors: list[tuple[Leaf, TensorSpec]] = []
    for (spec, node), leaf in zip(wanted, leaves, strict=True):
        expected = _expected_tensor(spec, node)
        if expected is None:
            _check_constant(spec, leaf)
        else:
            _check_tensor(expected, leaf)
            tensors.append((leaf, expected))
    _check_sizes(program, tensors)


def _expected_tensor(spec: InputSpec, node: fx.Node) -> TensorSpec | None:
    if isinstance(spec.arg, ConstantArgument):
        return None
    value = value_of(node)
    return TensorSpec.of(value) if isinstance(value, torch.Tensor) else None


def _check_constant(spec: InputSpec, leaf: Leaf) -> None:
    if not isinstance(spec.arg, ConstantArgument):
        return
    expected = spec.arg.value
    # True == 1 == 1.0 for Python, but not for the program. NaN is not even itself.
    if type(leaf.value) is type(expected) and (leaf.value == expected or leaf.value != leaf.value):
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


def _check_sizes(program: Program, tensors: Sequence[tuple[Leaf, TensorSpec]]) -> None:
    binding, mismatches = bind_sizes([spec.shape for _, spec in tensors], [leaf.value.shape for leaf, _ in tensors])
    wrong = []
    for tensor, dimension, size, came in mismatches:
        leaf, spec = tensors[tensor]
        wrong.append(f"{leaf.path}.shape[{dimension}] is {came}, but {_wanted_size(spec.shape[dimension], size)}")
    for symbol, came in program.sizes.out_of_range(binding):
        wrong.append(f"{symbol.seen_at} is {came}, outside of {symbol.name} in {symbol.range}")
    for guard in [] if wrong else program.sizes.failing_guards(binding):
        values = ", ".join(f"{s.name} = {binding[s.symbol]}" for s in program.sizes.symbols if s.symbol in binding)
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
