"""Clears what functions under ``functools.lru_cache`` cached during a trace: it must not be used outside of it.

Before: a helper's cache holds the fake tensor, or the symbol, that it returned while the program was traced
After:  the cache is empty; the next trace, and eager, compute the value again
"""

import functools
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

from precast.trace.executed_code import code_being_noted, is_machinery, is_trusted

# Kept for runs for second-order gradients, which come when executed code is no longer watched.
_known: "WeakSet[functools._lru_cache_wrapper[Any]]" = WeakSet()
_misses: "WeakKeyDictionary[functools._lru_cache_wrapper[Any], int]" = WeakKeyDictionary()
"""The numbers of cache misses, before the program ran, of the functions that it can reach."""


def note_cached_functions(reachable: Iterable[Any]) -> None:
    """Record the state of the user's cached functions that a program can reach, before it runs."""
    for each in reachable:
        if isinstance(each, functools._lru_cache_wrapper) and not _is_library(getattr(each, "__module__", None)):
            _misses.setdefault(each, each.cache_info().misses)


@contextmanager
def forgotten_results() -> Iterator[None]:
    """Run a trace inside; afterwards, the caches that it added to are cleared."""
    if code_being_noted() is None:
        # It is unknown which globals the program reads.
        note_cached_functions(_held_by_users_modules())
    try:
        yield
    finally:
        _known.update(each for each, misses in list(_misses.items()) if each.cache_info().misses != misses)
        _misses.clear()
        for function in list(_known):
            function.cache_clear()


def _is_library(name: str | None) -> bool:
    return is_trusted(name) or is_machinery(name)


def _held_by_users_modules() -> Iterator[Any]:
    modules = [each for name, each in list(sys.modules.items()) if not _is_library(name)]
    classes: dict[int, type] = {}
    for module in modules:
        held = list(vars(module).values()) if isinstance(module, ModuleType) else []
        yield from _cached(held)
        # Many modules hold the same class.
        classes.update((id(value), value) for value in held if isinstance(value, type))
    for kind in classes.values():
        yield from _cached(list(vars(kind).values()))


def _cached(values: list[Any]) -> Iterator[Any]:
    """The cached functions among many values. Written for speed: there may be hundreds of thousands."""
    if _WRAPPERS.isdisjoint(map(type, values)):
        return
    for value in values:
        if isinstance(value, staticmethod | classmethod):
            value = value.__func__
        if isinstance(value, functools._lru_cache_wrapper):
            yield value


_WRAPPERS = {functools._lru_cache_wrapper, staticmethod, classmethod}
