"""Calls of other sizes than the example's, for checking that dynamic sizes really are.

Before: ``x: f32[2, 12]`` with the sizes ``batch, length``
After:  ``x: f32[3, 13]``, made of the example's own values, so that indices stay in range
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import product

import sympy
import torch

from precast.ir.node_meta import tensor_of
from precast.ir.program import Program
from precast.ir.signature import ConstantArgument, InputKind
from precast.ir.sizes import bind_sizes, evaluate
from precast.ir.tensor_spec import Size, TensorSpec

# Tried in this order for every size symbol; one for which the program is valid is taken.
_STEPS = (1, -1, 2, 3, -2, 4, 7, 8)


def input_shapes(program: Program) -> list[tuple[Size, ...]]:
    """The sizes of the user's tensors, as numbers and expressions."""
    pairs = zip(program.signature.inputs, program.placeholders, strict=True)
    return [
        TensorSpec.of(tensor_of(node)).shape
        for spec, node in pairs
        if spec.kind is InputKind.USER_INPUT and not isinstance(spec.arg, ConstantArgument)
    ]


def other_bindings(program: Program, inputs: Sequence[torch.Tensor]) -> Iterator[dict[sympy.Symbol, int]]:
    """Sizes that the program allows, each different from the example's."""
    shapes = input_shapes(program)
    example, _ = bind_sizes(shapes, [tensor.shape for tensor in inputs])
    symbols = sorted(example, key=str)
    for steps in _combinations(len(symbols)):
        binding = {symbol: example[symbol] + step for symbol, step in zip(symbols, steps, strict=True)}
        if not program.sizes.out_of_range(binding) and not program.sizes.failing_guards(binding):
            yield binding


def _combinations(count: int) -> Iterator[tuple[int, ...]]:
    """Steps for all symbols: the same for all first, then mixed."""
    if count:
        yield from ((step,) * count for step in _STEPS)
        yield from (steps for steps in product(_STEPS[:4], repeat=min(count, 4)) if len(steps) == count)


def resized(tensor: torch.Tensor, shape: Sequence[Size], binding: Mapping[sympy.Symbol, int]) -> torch.Tensor:
    """The example repeated or cut to other sizes; integers in ascending order, as offsets are, stay in that order."""
    for dimension, size in enumerate(shape):
        wanted = evaluate(size, binding)
        if wanted != tensor.shape[dimension]:
            tensor = (
                tensor.index_select(dimension, _repeated(tensor, dimension, wanted))
                if tensor.numel()
                else tensor.new_zeros(_with(tensor, dimension, wanted))
            )
    return tensor


def _repeated(tensor: torch.Tensor, dimension: int, wanted: int) -> torch.Tensor:
    """Which of the example's elements to take: all in turn, or the last one again where that keeps them ascending."""
    indices, size = torch.arange(wanted), tensor.shape[dimension]
    is_no_integer = tensor.dtype == torch.bool or tensor.is_floating_point()
    is_ascending = not is_no_integer and bool((tensor.long().diff(dim=dimension) >= 0).all())
    return indices.clamp(max=size - 1) if is_ascending else indices % size


def _with(tensor: torch.Tensor, dimension: int, size: int) -> list[int]:
    return [size if number == dimension else old for number, old in enumerate(tensor.shape)]


def describe_binding(program: Program, binding: Mapping[sympy.Symbol, int]) -> str:
    """``batch=3, length=13``."""
    return ", ".join(
        f"{symbol.name}={binding[symbol.symbol]}" for symbol in program.sizes.symbols if symbol.symbol in binding
    )
