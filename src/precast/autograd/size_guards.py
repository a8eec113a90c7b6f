"""The size conditions of a dynamic variant as one Python function over the inputs' sizes."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import sympy
import torch
from torch.utils._sympy.printers import PythonPrinter

from precast.autograd.compiled_variant import SizeCheck
from precast.ir.sizes import SymbolicSizes


def size_check(sizes: SymbolicSizes, expected: Mapping[int, Sequence[int | str]]) -> SizeCheck:
    """A function that tells whether real inputs have sizes for which the trace is valid.

    ``expected`` are the sizes of tensors by their position among the inputs: numbers, and names of symbols.
    """
    conditions = [guard.condition for guard in sizes.guards]
    names = {item.name: f"size{i}" for i, item in enumerate(sizes.symbols)}
    plain = {item.symbol: sympy.Symbol(names[item.name], integer=True) for item in sizes.symbols}
    printer = PythonPrinter()
    homes = {root: place for place, root in reversed(_places(expected)) if isinstance(root, str)}
    lines = [f"    {names[root]} = values[{place}].shape[{dimension}]" for root, (place, dimension) in homes.items()]
    tests = [_shape_test(place, shape, names) for place, shape in expected.items()]
    tests += [f"({printer.doprint(condition.xreplace(plain))})" for condition in conditions]
    source = "\n".join(["def check(values):", *lines, f"    return {' and '.join(tests) or 'True'}"])
    scope: dict[str, Any] = {"math": math, "torch": torch}
    exec(compile(source, "<size guards>", "exec"), scope)
    check: SizeCheck = scope["check"]
    return check


def _places(expected: Mapping[int, Sequence[int | str]]) -> list[tuple[tuple[int, int], int | str]]:
    return [((place, dimension), size) for place, shape in expected.items() for dimension, size in enumerate(shape)]


def _shape_test(place: int, shape: Sequence[int | str], names: Mapping[str, str]) -> str:
    sizes = "".join(f"{names[size] if isinstance(size, str) else size}, " for size in shape)
    return f"values[{place}].shape == ({sizes})"
