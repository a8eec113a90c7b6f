"""Names of dynamic sizes in the model: the user's own, and expressions over them."""

from collections.abc import Sequence

import onnx_ir as ir
import sympy
import torch

from precast.errors import InputValueError
from precast.ir.sizes import SymbolicSizes
from precast.ir.tensor_spec import Size, as_size


class SizeNames:
    """Says the sizes of values in the user's words: ``batch``, ``2*length + 1``."""

    def __init__(self, sizes: SymbolicSizes) -> None:
        names = [symbol.name for symbol in sizes.symbols]
        for symbol in sizes.symbols:
            if names.count(symbol.name) > 1:
                places = [other.seen_at for other in sizes.symbols if other.name == symbol.name]
                raise InputValueError(
                    f"Two different sizes are called {symbol.name!r}: {' and '.join(places)}.",
                    why="in an ONNX model the same name means the same size",
                    fix="Give the two dimensions Dims with different names.",
                )
        self._named = {symbol.symbol: sympy.Symbol(symbol.name) for symbol in sizes.symbols}

    def shape(self, sizes: Sequence[int | torch.SymInt]) -> ir.Shape:
        return ir.Shape([self._size(as_size(size)) for size in sizes])

    def _size(self, size: Size) -> int | str:
        return size if isinstance(size, int) else str(size.xreplace(self._named))
