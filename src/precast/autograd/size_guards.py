"""The size conditions of a dynamic variant as one Python function over the inputs' sizes."""

import math
from collections.abc import Mapping
from typing import Any

import sympy
from torch.utils._sympy.printers import PythonPrinter

from precast.autograd.compiled_variant import SizeCheck
from precast.ir.sizes import SymbolicSizes


def size_check(sizes: SymbolicSizes, homes: Mapping[str, tuple[int, int]]) -> SizeCheck:
    """A function that tells whether real inputs have sizes for which the trace is valid.

    ``homes`` says for each symbol's name at which input and dimension it is read.
    """
    conditions = [guard.condition for guard in sizes.guards]
    used = {symbol for condition in conditions for symbol in condition.free_symbols}
    read = [(f"size{i}", item) for i, item in enumerate(sizes.symbols) if item.symbol in used]
    plain = {item.symbol: sympy.Symbol(name, integer=True) for name, item in read}
    printer = PythonPrinter()
    tests = [f"({printer.doprint(condition.xreplace(plain))})" for condition in conditions]
    lines = [f"    {name} = values[{homes[item.name][0]}].shape[{homes[item.name][1]}]" for name, item in read]
    source = "\n".join(["def check(values):", *lines, f"    return {' and '.join(tests) or 'True'}"])
    scope: dict[str, Any] = {"math": math}
    exec(compile(source, "<size guards>", "exec"), scope)
    check: SizeCheck = scope["check"]
    return check
