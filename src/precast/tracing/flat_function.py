"""What the stages hand to each other when it is a callable."""

from collections.abc import Callable, Sequence
from typing import Any

FlatFunction = Callable[..., Sequence[Any]]
"""Takes flat positional inputs, returns a flat sequence of outputs."""
