"""The contents of objects, read without running code of their classes."""

import weakref
from collections.abc import Mapping
from functools import cached_property, lru_cache, partial, partialmethod
from types import MappingProxyType, MethodType
from typing import Any

from precast.trace.capture.module_state import WithModules
from precast.trace.executed_code import is_trusted

_CACHING = type(lru_cache(len))


def own_attributes(value: Any) -> Mapping[str, Any]:
    """An object's ``__dict__``, bypassing its class's ``__getattribute__``; read-only for a class, empty if none."""
    try:
        held: Mapping[str, Any] = object.__getattribute__(value, "__dict__")
    except (AttributeError, ReferenceError):
        return MappingProxyType({})
    return held


def looks_up_by_itself(kind: type) -> bool:
    """Whether a class has its own ``__getattr__`` or ``__getattribute__``."""
    own = [base for base in kind.__mro__ if not is_trusted(base.__module__)]
    return any("__getattr__" in vars(base) or "__getattribute__" in vars(base) for base in own)


def parts_of_constant(value: Any) -> tuple[Any, ...] | None:
    """The parts of an immutable object, such as a method or a partial."""
    if isinstance(value, MethodType):
        return value.__func__, value.__self__
    if isinstance(value, WithModules):
        return value.function, *value.modules.values()
    if isinstance(value, (partial, partialmethod)):
        return value.func, value.args, value.keywords
    if isinstance(value, weakref.ref):
        return (value(),)
    if isinstance(value, (staticmethod, classmethod)):
        return (value.__func__,)
    if isinstance(value, property):
        return value.fget, value.fset
    if isinstance(value, cached_property):
        return (value.func,)
    # Recognized by type: an object with __getattr__ may have any attribute that it is asked for.
    return (value.__wrapped__,) if isinstance(value, _CACHING) else None
