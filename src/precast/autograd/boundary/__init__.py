"""What stands between a caller and functional graphs: one small wrapper per thing that eager does and graphs do not.

A wrapper takes a ``FlatCall``, a function from one list of inputs to one list of outputs, and returns another one. A
variant is built from the wrappers that its facts ask for, and from no others.
"""

from collections.abc import Callable, Sequence
from typing import Any

FlatCall = Callable[[Sequence[Any]], list[Any]]
"""Flat inputs in, flat outputs out."""

__all__ = ["FlatCall"]
