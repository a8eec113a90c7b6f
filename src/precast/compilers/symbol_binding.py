"""What each symbolic size stands for in one run of a graph."""

from collections.abc import Iterator, Sequence

import sympy
import torch

_SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)


class SymbolBinding:
    """Symbols and the numbers that the values seen so far give them."""

    def __init__(self) -> None:
        self._numbers: dict[sympy.Symbol, sympy.Expr] = {}

    def bind(self, promised: object, real: object) -> None:
        """Learn from a real value the symbols that stand alone in the promised one; the first value of each counts."""
        for symbolic, number in _pairs(promised, real):
            expression = symbolic.node.expr
            if isinstance(expression, sympy.Symbol):
                self._numbers.setdefault(expression, sympy.sympify(number))

    def value(self, promised: object) -> int | float | bool | None:
        """Return the number that a promised one stands for; None if it needs a symbol not known yet."""
        if not isinstance(promised, _SYMBOLIC):
            return promised if isinstance(promised, int | float) else None
        number = promised.node.expr.xreplace(self._numbers)
        if getattr(number, "free_symbols", None):
            return None
        if isinstance(promised, torch.SymBool):
            return bool(number)
        return int(number) if isinstance(promised, torch.SymInt) else float(number)

    def values(self, promised: Sequence[int | torch.SymInt]) -> list[int | None]:
        """Return the numbers that promised sizes or strides stand for."""
        return [None if (number := self.value(size)) is None else int(number) for size in promised]

    def describe(self) -> str:
        """Return the binding as people write it, ``s0 = 4, s1 = 3``."""
        return ", ".join(f"{symbol} = {number}" for symbol, number in self._numbers.items())


def _pairs(promised: object, real: object) -> Iterator[tuple[torch.SymInt | torch.SymFloat | torch.SymBool, object]]:
    if isinstance(promised, torch.Tensor) and isinstance(real, torch.Tensor):
        if promised.dim() == real.dim():
            for size, length in zip(promised.shape, real.shape, strict=True):
                yield from _pairs(size, length)
            for promised_step, step in zip(promised.stride(), real.stride(), strict=True):
                yield from _pairs(promised_step, step)
    elif isinstance(promised, _SYMBOLIC) and isinstance(real, int | float):
        yield promised, real
