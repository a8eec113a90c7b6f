"""Layers are alike, and so are the subscripts of their loops: few of those that are asked for are new."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import TypeVar

Kind = TypeVar("Kind", bound=type)

remembered = lru_cache(maxsize=65536)
"""For functions of frozen values that are asked the same again and again."""


def hashed_once(kind: Kind) -> Kind:
    """Let the hash of each object of a frozen dataclass be computed once."""
    compute: Callable[[object], int] = vars(kind)["__hash__"]

    def remembered_hash(self: object) -> int:
        known = self.__dict__
        if "_hash" not in known:
            known["_hash"] = compute(self)
        found: int = known["_hash"]
        return found

    type.__setattr__(kind, "__hash__", remembered_hash)
    return kind
