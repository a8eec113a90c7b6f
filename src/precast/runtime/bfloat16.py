"""bfloat16 among numpy's arrays, which have no such type: those of ``ml_dtypes`` where it is installed, else bits.

Bits are ``uint16``, a type that no program takes for itself. Whoever passes bits gets bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from precast.artifact.weights import Weight

Array = np.ndarray[Any, np.dtype[Any]]
_BITS = np.dtype(np.uint16)


def is_bfloat16(value: object) -> bool:
    """Whether a value is an array of bfloat16, by that name or as bits."""
    return isinstance(value, np.ndarray) and (value.dtype == _BITS or value.dtype.name == "bfloat16")


def are_bits(values: Sequence[object]) -> bool:
    """Whether there are bits among the arrays of a call."""
    return any(isinstance(value, np.ndarray) and value.dtype == _BITS for value in values)


def with_bits(value: Any, dtype: str) -> Any:
    """What is passed for a tensor of this type, in words that compiled code understands: only bfloat16 needs them."""
    return Weight(dtype, value.view(_BITS)) if dtype == "bf16" and is_bfloat16(value) else value


def without_bits(value: Any, *, as_bits: bool) -> Any:
    """A result for the caller: bfloat16 as it was asked for, all else as it is."""
    if not isinstance(value, Weight):
        return value
    named = None if as_bits else _named()
    return value.carrier if named is None else value.carrier.view(named)


@cache
def _named() -> np.dtype[Any] | None:
    try:
        import ml_dtypes
    except ImportError:
        return None
    named: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
    return named
