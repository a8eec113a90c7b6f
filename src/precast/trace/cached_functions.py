"""Functions under ``functools.lru_cache`` that a program calls: what they cached in a trace is of no use outside of it.

Before: a helper's cache holds the fake tensor, or the symbol, that it returned while the program was traced
After:  the cache is empty; the next trace, and eager, compute the value for themselves
"""

import functools
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

from precast.trace.executed_code import code_being_noted, is_machinery, is_trusted

# Runs for gradients of gradients come when nobody notes code any more.
_known: "WeakSet[functools._lru_cache_wrapper[Any]]" = WeakSet()
_misses: "WeakKeyDictionary[functools._lru_cache_wrapper[Any], int]" = WeakKeyDictionary()
"""How often the functions that a program can reach had computed something before it ran."""


def note_cached_functions(reachable: Iterable[Any]) -> None:
    """Look at the cached functions of the user's among what a program can reach, before it runs."""
    for each in reachable:
        if isinstance(each, functools._lru_cache_wrapper) and not _is_library(getattr(each, "__module__", None)):
            _misses.setdefault(each, each.cache_info().misses)


@contextmanager
def forgotten_results() -> Iterator[None]:
    """While active, a trace runs; afterwards the caches that it has put something into are empty."""
    if code_being_noted() is None:
        # Nobody tells which globals the program reads.
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
    for variables in [vars(module) for module in modules if isinstance(module, ModuleType)]:
        yield from _values_of(variables)
        for kind in [value for value in list(variables.values()) if isinstance(value, type)]:
            yield from _values_of(vars(kind))


def _values_of(held: Mapping[str, Any]) -> list[Any]:
    return [value.__func__ if isinstance(value, staticmethod | classmethod) else value for value in list(held.values())]
