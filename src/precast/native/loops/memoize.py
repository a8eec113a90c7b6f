"""Memoization: layers are alike, and so are the subscripts of their loops, so most requests repeat an earlier one."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import TypeVar

Kind = TypeVar("Kind", bound=type)

remembered = lru_cache(maxsize=65536)
"""Memoizes a function of immutable values."""


def hashed_once(kind: Kind) -> Kind:
    """Compute the hash of each object of a frozen dataclass only once."""
    compute: Callable[[object], int] = vars(kind)["__hash__"]

    def remembered_hash(self: object) -> int:
        known = self.__dict__
        if "_hash" not in known:
            known["_hash"] = compute(self)
        found: int = known["_hash"]
        return found

    type.__setattr__(kind, "__hash__", remembered_hash)
    return kind
