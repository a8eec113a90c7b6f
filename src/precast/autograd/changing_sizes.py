"""Which sizes of a function's arguments are symbols: those that were seen to change from one compiled call to the next.

Before: calls with tensors of the sizes (1, 6) and (1, 6), then (1, 7) and (1, 7)
After:  one symbol, which is the last size of both; a third call with (2, 8) and (2, 9) asks for three symbols
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

SizeRoots = Mapping[tuple[int, int], str]
"""The symbol of a size, by leaf and dimension; one name for sizes that are always equal."""


def all_sizes(leaves: Sequence[Any]) -> SizeRoots:
    """A symbol for every size that is neither 0 nor 1."""
    return {
        (number, dimension): _name(number, dimension)
        for number, leaf in enumerate(leaves)
        if isinstance(leaf, torch.Tensor)
        for dimension, size in enumerate(leaf.shape)
        if size >= 2
    }


class SizesMet:
    """The sizes of the calls that were compiled, for calls that are alike otherwise."""

    def __init__(self) -> None:
        self._met: dict[Any, list[list[tuple[int, ...]]]] = {}

    def changing(self, key: Any, leaves: Sequence[Any]) -> SizeRoots:
        """The sizes of these leaves that are not as in all calls before with the same ``key``."""
        met = self._met.setdefault(key, [])
        met.append([tuple(leaf.shape) if isinstance(leaf, torch.Tensor) else () for leaf in leaves])
        names: dict[tuple[int, ...], str] = {}
        return {
            (number, dimension): names.setdefault(sizes, _name(number, dimension))
            for number, shapes in enumerate(zip(*met, strict=True))
            for dimension, sizes in enumerate(zip(*shapes, strict=True))
            if len(set(sizes)) > 1
        }


def _name(leaf: int, dimension: int) -> str:
    return f"leaf{leaf}.shape[{dimension}]"
