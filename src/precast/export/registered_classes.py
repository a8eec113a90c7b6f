"""Dataclasses among the arguments and results of programs."""

import dataclasses
from typing import Any

from torch.utils import _pytree as pytree

from precast.errors import InputTypeError


def register_dataclass(cls: type[Any], *, serialized_type_name: str | None = None) -> None:
    """Register a dataclass as a container (pytree node), so that its objects can be arguments and results.

    ``serialized_type_name`` is the name of the class in files; by default its module and qualified name.
    """
    if not dataclasses.is_dataclass(cls):
        raise InputTypeError(
            f"{cls!r} is not a dataclass.",
            why="objects are flattened into their fields, and restored from them",
            fix="Decorate the class with @dataclass, or register it with torch.utils._pytree.register_pytree_node.",
        )
    name = serialized_type_name or f"{cls.__module__}.{cls.__qualname__}"
    pytree.register_dataclass(cls, serialized_type_name=name)
