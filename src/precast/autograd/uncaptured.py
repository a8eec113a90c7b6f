"""Forwards that cannot be captured and so run in Python: why, and how people are told.

Before: tracing ``model`` failed in ``model.router``, which decides in Python on a value
After:  one warning, when the call has run in pieces: the modules that run in Python, the line, the reason and the fix

Warnings that point at the line of the user's that called compiled code, however deep that call is in ours.
"""

import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType, FunctionType
from typing import Any, NamedTuple

import torch

from precast.errors import PrecastError
from precast.events import tell
from precast.trace.capture.module_state import module_names, root_modules


def warn_at_users_line(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn, at the innermost line that is neither ours nor torch's."""
    # What tells whose a file is comes with the tracer, which starts without a trace do without.
    from precast.trace.provenance import is_users_file

    level = 1
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not is_users_file(frame.f_code.co_filename):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level + 1 if frame is not None else 2)


_MOST_TOLD = 4
Function = Callable[..., Any]


class NotCapturedError(Exception):
    """Tracing a program ended in ``error``: what a graph cannot record, or what the program itself raises.

    ``keep`` is called if it is the former: if the program runs in pieces, that can be known in other processes.
    """

    def __init__(self, error: Exception) -> None:
        self.error = error
        self.keep: Callable[[], None] = _keep_nothing


def _keep_nothing() -> None:
    return


class UncapturedForward(NamedTuple):
    """A forward that runs in Python: whose it is, the line that could not be captured, why, and what to do."""

    function: Function
    at: str
    why: str
    fix: str

    @classmethod
    def of(cls, function: Function, error: BaseException) -> "UncapturedForward":
        """What a failed capture tells."""
        return cls(function, *told_of(error))


def told_of(error: BaseException) -> tuple[str, str, str]:
    """The line that could not be captured, why, and what to do."""
    if isinstance(error, PrecastError):
        return error.at or "", f"{error.what} {error.why}".rstrip(), error.fix
    # Errors are told to people, and seldom: capture and its tracer need not be loaded before.
    from precast.trace.provenance import users_line

    text = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
    return users_line(error.__traceback__) or "", text, "Move what fails out of the forward."


class Region(NamedTuple):
    """A function or module that is a part of a program: compiled, or run in Python, and for what reason."""

    function: Function
    is_in_python: bool
    reason: str


class GraphBreakWarning(UserWarning):
    """Parts of a program run in Python, since they cannot be captured."""


class _Running(threading.local):
    """What could not be captured since the outermost call that runs in pieces began; None outside of such calls."""

    found: list[UncapturedForward] | None = None


_running = _Running()


@contextmanager
def told_failures(function: Function, error: Exception | None) -> Iterator[None]:
    """While active, ``function`` runs in pieces; ``error`` says why, where that is news.

    Who comes first tells of everything that was found on the way, unless the function itself fails.
    """
    new = [] if error is None else [UncapturedForward.of(function, error)]
    for each in new:
        tell(each)
    if _running.found is not None:
        _running.found += new
        yield
        return
    _running.found = new
    try:
        yield
    finally:
        _running.found = None
    if new:
        _tell(function, new)


def named_modules(function: Function) -> dict[str, torch.nn.Module]:
    """The modules among the global variables that a function names."""
    if not isinstance(function, FunctionType):
        return {}
    variables = function.__globals__
    named = {name: variables[name] for name in function.__code__.co_names if name in variables}
    return {name: value for name, value in named.items() if isinstance(value, torch.nn.Module)}


def _modules_in_reach(function: Function) -> dict[str, torch.nn.Module]:
    return root_modules(function) | named_modules(function)


def names_within(function: Function) -> Callable[[Function], str]:
    """What functions and modules that are parts of ``function`` are called: modules by their path."""
    names = module_names(_modules_in_reach(function))

    def name(part: Function) -> str:
        return names.get(id(getattr(part, "__self__", part))) or name_of(part)

    return name


def _tell(function: Function, breaks: list[UncapturedForward]) -> None:
    name_within = names_within(function)
    reasons: dict[tuple[str, str, str], list[Function]] = {}
    for each in breaks:
        reasons.setdefault(each[1:], []).append(each.function)
    told = []
    for (at, why, fix), found in list(reasons.items())[:_MOST_TOLD]:
        told.append(", ".join(name_within(one) for one in _innermost(found)))
        told += [*([f"  at:  {at}"] if at else []), f"  why: {why}", f"  fix: {fix}"]
    more = [f"and {len(reasons) - _MOST_TOLD} more lines"] if len(reasons) > _MOST_TOLD else []
    beginning = (
        f"{name_of(function)} runs in pieces: what is named here runs in Python, the modules that it calls are "
        "compiled. fullgraph=True raises instead."
    )
    warn_at_users_line("\n".join([beginning, *told, *more]), GraphBreakWarning)


def _innermost(functions: list[Function]) -> list[Function]:
    """Those that hold none of the others: a line that breaks a module breaks all that hold it."""
    broken = set(map(id, functions))
    return [
        function
        for function in functions
        if not any(
            id(module) in broken and module is not function
            for root in _modules_in_reach(function).values()
            for module in root.modules()
        )
    ]


def name_of(function: Function) -> str:
    """What people call a function or a module."""
    return getattr(function, "__qualname__", type(function).__qualname__)
