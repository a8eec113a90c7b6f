"""Functions under ``functools.lru_cache`` that a program calls: what they cached in a trace is of no use outside of it.

Before: a helper's cache holds the fake tensor, or the symbol, that it returned while the program was traced
After:  the cache is empty; the next trace, and eager, compute the value for themselves
"""

import functools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from weakref import WeakSet

from precast.trace.executed_code import Executed, code_being_noted, is_machinery, is_trusted

# Runs for gradients of gradients come when nobody notes code any more.
_known: "WeakSet[functools._lru_cache_wrapper[Any]]" = WeakSet()


def forget_traced_results() -> None:
    """Empty the caches of the functions of the user's that a trace has run."""
    if (noted := code_being_noted()) is not None:
        _known.update(_cached_functions(list(noted.seen.values())))
    for function in list(_known):
        function.cache_clear()


def _cached_functions(executed: Iterable[Executed]) -> Iterator["functools._lru_cache_wrapper[Any]"]:
    users = [each for each in executed if not _is_library(str(each.variables.get("__name__", "")))]
    codes = {id(each.code) for each in users}
    for variables in {id(each.variables): each.variables for each in users}.values():
        classes = [vars(value) for value in list(variables.values()) if isinstance(value, type)]
        for holder in (variables, *classes):
            yield from (each for each in _wrappers_in(holder) if _code_of(each) in codes)


def _is_library(name: str) -> bool:
    return is_trusted(name) or is_machinery(name)


def _wrappers_in(holder: Mapping[str, Any]) -> list["functools._lru_cache_wrapper[Any]"]:
    values = [value.__func__ if isinstance(value, staticmethod) else value for value in list(holder.values())]
    return [value for value in values if isinstance(value, functools._lru_cache_wrapper)]


def _code_of(function: "functools._lru_cache_wrapper[Any]") -> int:
    return id(getattr(function.__wrapped__, "__code__", None))
