"""Classes that files name and never import: which of them this process knows, and of which it may make objects."""

from __future__ import annotations

import dataclasses
import sys
from collections import UserDict
from typing import Any

COUNTERS = frozenset({"cumulative_length", "cumulative_length_int", "_seen_tokens"})
"""Numbers that caches count up at every call. They travel as sizes of empty tensors, since sizes may be dynamic."""


def class_name(kind: type) -> str:
    """How files name a class: ``module:name``."""
    return f"{kind.__module__}:{kind.__qualname__}"


def find_class(name: str) -> Any:
    """What has that name in the modules that are loaded; None if nothing has."""
    module, _, path = name.partition(":")
    found: Any = sys.modules.get(module)
    for part in path.split("."):
        found = vars(found).get(part) if hasattr(found, "__dict__") else None
    return found


def is_attribute_name(name: object) -> bool:
    """Whether a file may set an attribute of that name: none that Python itself reads."""
    return isinstance(name, str) and name.isidentifier() and not name.startswith("__")


def is_container_class(kind: object) -> bool:
    """Whether objects of a class are nothing but what their attributes hold: caches, dataclasses, wrapped dicts."""
    if not isinstance(kind, type) or any(base.__module__.partition(".")[0] == "torch" for base in kind.__mro__):
        return False
    is_cache = any(base.__name__.endswith(("Cache", "CacheLayerMixin")) for base in kind.__mro__)
    is_transformers_cache = is_cache and kind.__module__.startswith("transformers.")
    is_record = dataclasses.is_dataclass(kind) or hasattr(kind, "__attrs_attrs__")
    return is_transformers_cache or is_record or issubclass(kind, UserDict)
