"""Dataclasses among the arguments and results of programs."""

import dataclasses
from typing import Any

from torch.utils import _pytree as pytree

from precast.errors import InputTypeError


def register_dataclass(cls: type[Any], *, serialized_type_name: str | None = None) -> None:
    """Let objects of a dataclass be arguments and results: containers of what their fields hold.

    ``serialized_type_name`` is what files call the class; without one, its module and name.
    """
    if not dataclasses.is_dataclass(cls):
        raise InputTypeError(
            f"{cls!r} is no dataclass.",
            why="fields are what an object is taken apart into and made of again",
            fix="Decorate the class with @dataclass, or register it with torch.utils._pytree.register_pytree_node.",
        )
    name = serialized_type_name or f"{cls.__module__}.{cls.__qualname__}"
    pytree.register_dataclass(cls, serialized_type_name=name)
