"""Where a traced value lies in memory, for a real call: sizes, strides and offset from the sizes of the inputs.

What a compiler returns has the right numbers in it, but may lie anywhere; an alias that the caller gets must be cut out
of the caller's own memory exactly as eager cuts it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import sympy
import torch

from precast.ir.sizes import as_sympy

Number = int | torch.SymInt


@dataclass(frozen=True)
class TracedLayout:
    """Sizes, strides and storage offset as traced, over the symbols in the sizes of the traced ``inputs``."""

    size: tuple[Number, ...]
    stride: tuple[Number, ...]
    offset: Number
    inputs: tuple[Any, ...]

    def __call__(self, inputs: Sequence[Any], computed: torch.Tensor) -> tuple[Sequence[int], Sequence[int], int]:
        """The layout for real inputs; what depends on data is read off the ``computed`` value."""
        if self._is_static:
            return self.size, self.stride, self.offset  # type: ignore[return-value]
        evaluate = self._evaluator(inputs)
        size = list(map(evaluate, self.size, computed.size()))
        stride = list(map(evaluate, self.stride, computed.stride()))
        return size, stride, evaluate(self.offset, int(computed.storage_offset()))

    @cached_property
    def _is_static(self) -> bool:
        return all(isinstance(number, int) for number in (*self.size, *self.stride, self.offset))

    @cached_property
    def _homes(self) -> dict[sympy.Symbol, tuple[int, int]]:
        """At which input and dimension each symbol is read."""
        homes: dict[sympy.Symbol, tuple[int, int]] = {}
        for number, fake in enumerate(self.inputs):
            sizes: Sequence[Number] = fake.shape if isinstance(fake, torch.Tensor) else ()
            for dim, size in enumerate(sizes):
                if isinstance(size, torch.SymInt) and isinstance(size.node.expr, sympy.Symbol):
                    homes.setdefault(size.node.expr, (number, dim))
        return homes

    def _evaluator(self, inputs: Sequence[Any]) -> Callable[[Number, int], int]:
        binding = as_sympy({symbol: inputs[number].size(dim) for symbol, (number, dim) in self._homes.items()})

        def evaluate(number: Number, otherwise: int) -> int:
            if isinstance(number, int):
                return number
            value = number.node.expr.xreplace(binding)
            return int(value) if value.is_number else otherwise

        return evaluate


def layout_of(value: torch.Tensor, inputs: Sequence[Any], *, offset: Number | None = None) -> TracedLayout:
    """The layout of a fake ``value`` that was traced from the fake ``inputs``; ``offset`` if counted from elsewhere."""
    start = value.storage_offset() if offset is None else offset
    return TracedLayout(tuple(value.size()), tuple(value.stride()), start, tuple(inputs))
