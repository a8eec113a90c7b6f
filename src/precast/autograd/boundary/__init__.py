"""The wrappers between a caller and functional graphs: one for each effect of eager that graphs do not have.

A wrapper takes a ``FlatCall``, a function from one list of inputs to one list of outputs, and returns another one. A
variant is built only from the wrappers that its boundary facts require.
"""

from collections.abc import Callable, Sequence
from typing import Any

FlatCall = Callable[[Sequence[Any]], list[Any]]
"""Flat inputs in, flat outputs out."""

__all__ = ["FlatCall"]
