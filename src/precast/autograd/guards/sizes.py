"""The size guards of a dynamic variant, compiled into one Python function over the inputs' sizes.

Also prints symbolic sizes as text that does not depend on torch's names of the symbols, for cache keys.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import sympy
import torch
from torch.fx.experimental.sym_node import SymNode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils._sympy.printers import PythonPrinter

from precast.cache import Indescribable
from precast.errors import ExportError
from precast.graph.expressions import expression_from_json, expression_to_json
from precast.graph.sizes import SymbolicSizes


class SizeCheck:
    """Checks that real inputs have sizes for which a trace is valid: ``holds(values)``.

    ``expected`` are the sizes of tensors by their position among the inputs: numbers, and names of symbols.
    ``conditions`` are the guards of the trace, over plain symbols with these ``names``.
    """

    def __init__(
        self, expected: Mapping[int, Sequence[int | str]], names: Sequence[str], conditions: Sequence[sympy.Basic]
    ) -> None:
        self._expected, self._names, self._conditions = expected, names, conditions
        homes = {root: place for place, root in reversed(_places(expected)) if isinstance(root, str)}
        lines = [f"    {root} = values[{place}].shape[{dimension}]" for root, (place, dimension) in homes.items()]
        tests = [_shape_test(place, shape) for place, shape in expected.items()]
        printer = PythonPrinter()
        tests += [f"({printer.doprint(condition)})" for condition in conditions]
        source = "\n".join(["def check(values):", *lines, f"    return {' and '.join(tests) or 'True'}"])
        scope: dict[str, Any] = {"math": math, "torch": torch}
        exec(compile(source, "<size guards>", "exec"), scope)
        self.holds: Callable[[Sequence[Any]], bool] = scope["check"]

    @classmethod
    def of(cls, sizes: SymbolicSizes, expected: Mapping[int, Sequence[int | str]]) -> "SizeCheck":
        """The check for a trace's symbols and guards."""
        names = {item.name: f"size{i}" for i, item in enumerate(sizes.symbols)}
        plain = {item.symbol: _plain_symbol(names[item.name]) for item in sizes.symbols}
        shapes = {
            place: [names[size] if isinstance(size, str) else size for size in shape]
            for place, shape in expected.items()
        }
        return cls(shapes, list(names.values()), [guard.condition.xreplace(plain) for guard in sizes.guards])

    def words(self, names: Sequence[str]) -> Iterator[str]:
        """Describe the dynamic sizes, with ``names`` for the values: where each is read, and the conditions."""
        for (place, dimension), root in _places(self._expected):
            if isinstance(root, str) and place < len(names):
                yield f"{names[place]}.shape[{dimension}] is {root}"
        yield from map(str, self._conditions)

    def to_data(self) -> dict[str, Any]:
        """The check as plain data. Raises Indescribable if a condition cannot be stored."""
        try:
            conditions = [expression_to_json(condition) for condition in self._conditions]
        except ExportError as problem:
            raise Indescribable(f"sizes: {problem.args[0].partition(chr(10))[0]}") from None
        return {"expected": list(self._expected.items()), "names": list(self._names), "conditions": conditions}

    @classmethod
    def of_data(cls, data: Mapping[str, Any]) -> "SizeCheck":
        """Rebuild the check. Safe for untrusted data: names are generated, and the reader validates the conditions."""
        names = [f"size{i}" for i in range(len(data["names"]))]
        expected = {
            int(place): [size if size in names else int(size) for size in shape] for place, shape in data["expected"]
        }
        symbols = {name: _plain_symbol(name) for name in names}
        return cls(expected, names, [expression_from_json(each, symbols) for each in data["conditions"]])


def _plain_symbol(name: str) -> sympy.Symbol:
    return sympy.Symbol(name, integer=True)


def _places(expected: Mapping[int, Sequence[int | str]]) -> list[tuple[tuple[int, int], int | str]]:
    return [((place, dimension), size) for place, shape in expected.items() for dimension, size in enumerate(shape)]


def _shape_test(place: int, shape: Sequence[int | str]) -> str:
    sizes = "".join(f"{size}, " for size in shape)
    return f"values[{place}].shape == ({sizes})"


Symbolic = torch.SymInt | torch.SymFloat | torch.SymBool

# Functions whose arguments sympy orders by name or by hash, and which are therefore sorted.
_COMMUTATIVE = ("Add", "Mul", "Max", "Min", "And", "Or", "Eq", "Ne", "Equality", "Unequality")


class SizeNames:
    """Names for size symbols in the order of their appearance: ``n0``, ``n1``, …"""

    def __init__(self) -> None:
        self._names: dict[sympy.Symbol, str] = {}
        self._texts: dict[sympy.Basic, str] = {}
        self._environments: dict[int, ShapeEnv] = {}

    def meet(self, values: Iterable[object]) -> None:
        """Name the symbols that are values by themselves, before expressions that combine them."""
        for value in values:
            if isinstance(value, Symbolic) and isinstance(_expression_of(value), sympy.Symbol):
                self._name(_expression_of(value))

    def text(self, value: int | Symbolic) -> str:
        """A number, or the expression of a symbolic one, as text."""
        if not isinstance(value, Symbolic):
            return str(value)
        expression = _expression_of(value)
        self._environments[id(value.node.shape_env)] = value.node.shape_env
        return self._expression(expression)

    def assumptions(self) -> str:
        """The assumptions about these sizes as text: their ranges, and every guard."""
        return "\n".join(line for environment in self._environments.values() for line in self._assumed(environment))

    def _assumed(self, environment: ShapeEnv) -> list[str]:
        conditions = [guard.expr for guard in environment.guards]
        conditions += [late.expr for group in environment.deferred_runtime_asserts.values() for late in group]
        lines = sorted({self._expression(condition) for condition in conditions})
        lines += sorted(f"{self._name(old)} = {self._expression(new)}" for old, new in environment.replacements.items())
        for symbol, name in self._names.items():
            allowed = environment.var_to_range.get(symbol)
            lines += [] if allowed is None else [f"{name}: {allowed.lower}..{allowed.upper}"]
        return lines

    def _expression(self, expression: sympy.Basic) -> str:
        known = self._texts.get(expression)
        if known is None:
            known = self._texts[expression] = self._spell(expression)
        return known

    def _spell(self, expression: sympy.Basic) -> str:
        if isinstance(expression, sympy.Symbol):
            return self._name(expression)
        if not expression.args:
            return str(sympy.srepr(expression))
        for symbol in sorted(expression.free_symbols, key=str):
            self._name(symbol)
        arguments = [self._expression(argument) for argument in expression.args]
        function = type(expression).__name__
        return f"{function}({', '.join(sorted(arguments) if function in _COMMUTATIVE else arguments)})"

    def _name(self, symbol: sympy.Symbol) -> str:
        return self._names.setdefault(symbol, f"n{len(self._names)}")


def _expression_of(value: Symbolic) -> sympy.Basic:
    if not isinstance(value.node, SymNode):
        raise Indescribable(f"a size of kind {type(value.node).__name__}")
    return value.node.expr
