"""Detects what neither a graph nor a guard can have: clocks, random numbers from outside of torch, files, seeds.

A program with such reads always runs in eager: a graph would keep the value of the first call as a constant. So does
one that reads or sets the state of random generators, or torch's defaults.
"""

import builtins
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType, FrameType, ModuleType
from typing import Any

from precast.trace.executed_code import ExecutedCode, is_machinery, is_trusted

_CLOCKS = frozenset({
    "clock_gettime", "clock_gettime_ns", "ctime", "gmtime", "localtime", "monotonic", "monotonic_ns", "perf_counter",
    "perf_counter_ns", "process_time", "process_time_ns", "thread_time", "thread_time_ns", "time", "time_ns",
})  # fmt: skip
_FILES = frozenset({
    "cwd", "exists", "glob", "home", "is_dir", "is_file", "iterdir", "open", "read_bytes", "read_text", "rglob", "stat",
})  # fmt: skip
_SYSTEM = frozenset({
    "exists", "getcwd", "getlogin", "getmtime", "getpid", "getsize", "isdir", "isfile", "listdir", "open", "scandir",
    "stat", "times", "urandom", "walk",
})  # fmt: skip
_IMPURE: dict[str, frozenset[str] | None] = {
    "time": _CLOCKS, "datetime": frozenset({"now", "today", "utcnow"}), "pathlib": _FILES, "posix": _SYSTEM,
    "os": _SYSTEM, "genericpath": _SYSTEM, "posixpath": _SYSTEM, "io": frozenset({"open", "open_code"}),
    "builtins": frozenset({"input"}), "random": None, "secrets": None, "uuid": None, "socket": None, "subprocess": None,
    "numpy.random": None,
}  # fmt: skip
"""Modules, and which of their functions; None for all."""
_OF_TORCH = frozenset({
    "clone_state", "fork_rng", "get_rng_state", "get_state", "graphsafe_get_state", "graphsafe_set_state",
    "initial_seed", "manual_seed", "seed", "set_default_device", "set_default_dtype", "set_default_tensor_type",
    "set_rng_state", "set_state",
})  # fmt: skip
"""Functions of torch and methods of its generators."""


def suspects(executed: ExecutedCode | None) -> set[int]:
    """The user's code objects, by identity, that name something impure and so may call it."""
    if executed is None:
        return set()
    return {
        id(each.code)
        for each in executed.seen.values()
        if not is_trusted(name := _name_of(each.variables))
        and not is_machinery(name)
        and any(_named_impurities(each.code, each.variables))
    }


def _name_of(variables: dict[str, Any]) -> str:
    return str(variables.get("__name__", ""))


def _named_impurities(code: CodeType, variables: dict[str, Any]) -> Iterator[bool]:
    # The values of free variables are not known here.
    yield not _HARMLESS.issuperset(code.co_freevars)
    for name in code.co_names:
        value = variables.get(name, getattr(builtins, name, sys.modules.get(name)))
        module = value.__name__ if isinstance(value, ModuleType) else str(getattr(value, "__module__", ""))
        yield module.partition(".")[0] in _ROOTS or name in ("open", "input") or name in _OF_TORCH


_HARMLESS = frozenset({"__class__", "self"})
_ROOTS = frozenset(module.partition(".")[0] for module in _IMPURE)


@contextmanager
def noted_impurities(code: set[int]) -> Iterator[list[str]]:
    """While active, record calls of impure functions by this code, with their lines."""
    found: list[str] = []
    chance = _states_of_chance()
    if not code or sys.getprofile() is not None:
        yield found
    else:

        def note(frame: FrameType, event: str, argument: Any) -> None:
            if event == "c_call" and id(frame.f_code) in code:
                name, caller = _builtin_name(argument), frame
            elif event == "call" and frame.f_back is not None and id(frame.f_back.f_code) in code:
                name, caller = _python_name(frame), frame.f_back
            else:
                return
            if _is_impure(*name):
                found.append(f"{'.'.join(name)}() in {caller.f_code.co_filename}:{caller.f_lineno}")

        sys.setprofile(note)
        try:
            yield found
        finally:
            sys.setprofile(None)
    if _states_of_chance() != chance and not found:
        found.append("random numbers of Python's or NumPy's")


def _builtin_name(function: Callable[..., Any]) -> tuple[str, str]:
    owner = getattr(function, "__self__", None)
    kind = owner if isinstance(owner, type) else type(owner)
    module = owner.__name__ if isinstance(owner, ModuleType) else kind.__module__
    return module, function.__name__


def _python_name(frame: FrameType) -> tuple[str, str]:
    # Of what wraps a function, as contextmanager and torch's decorators do, the function's.
    function = next((frame.f_locals[name] for name in ("func", "fn") if name in frame.f_code.co_freevars), None)
    if frame.f_code.co_name in ("helper", "inner") and callable(function):
        return str(function.__module__), str(getattr(function, "__name__", ""))
    return _name_of(frame.f_globals), frame.f_code.co_name


def _is_impure(module: str, name: str) -> bool:
    if name in _OF_TORCH and module.partition(".")[0] == "torch":
        return True
    for each, functions in _IMPURE.items():
        if (module == each or module.startswith(f"{each}.")) and (functions is None or name in functions):
            return True
    return False


def _states_of_chance() -> tuple[Any, ...]:
    numpy_random = sys.modules.get("numpy.random")
    legacy = None if numpy_random is None else numpy_random.get_state()
    return random.getstate(), None if legacy is None else (legacy[1].tobytes(), *legacy[2:])


@contextmanager
def restored_chance() -> Iterator[None]:
    """Restore the states of Python's and NumPy's random generators on exit."""
    numpy_random = sys.modules.get("numpy.random")
    state, legacy = random.getstate(), None if numpy_random is None else numpy_random.get_state()
    try:
        yield
    finally:
        random.setstate(state)
        if numpy_random is not None:
            numpy_random.set_state(legacy)
