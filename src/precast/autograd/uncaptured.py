"""Reports forwards that cannot be captured and so run in Python.

Before: tracing ``model`` failed in ``model.router``, which decides in Python on a value
After:  one warning, when the call has run in pieces: the modules that run in Python, the line, the reason and the fix
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
    """Warn at the innermost line that is neither ours nor torch's."""
    # Imported here: it loads the tracer, which a warm start does not need.
    from precast.trace.provenance import is_users_file

    level = 1
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not is_users_file(frame.f_code.co_filename):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level + 1 if frame is not None else 2)


_MOST_LINES = 4
Function = Callable[..., Any]


class NotCapturedError(Exception):
    """Tracing a program ended in ``error``: a graph cannot record it, or the program itself raises.

    In the former case, once the program has run in pieces, ``keep`` is called: it stores that for other processes.
    """

    def __init__(self, error: Exception) -> None:
        self.error = error
        self.keep: Callable[[], None] = _keep_nothing


def _keep_nothing() -> None:
    return


class UncapturedForward(NamedTuple):
    """A forward that runs in Python: its function, the line that could not be captured, why, and the fix."""

    function: Function
    at: str
    why: str
    fix: str

    @classmethod
    def of(cls, function: Function, error: BaseException) -> "UncapturedForward":
        """From the error of a failed capture."""
        return cls(function, *failure_texts(error))


def failure_texts(error: BaseException) -> tuple[str, str, str]:
    """The line that could not be captured, why, and the fix."""
    if isinstance(error, PrecastError):
        return error.at or "", f"{error.what.rstrip('.')}: {error.why}", error.fix
    # Imported here: errors are rare, and this loads the tracer.
    from precast.trace.provenance import users_line

    text = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
    return users_line(error.__traceback__) or "", text, "Move what fails out of the forward."


class Region(NamedTuple):
    """A function or module of a program: whether it is compiled or runs in Python, and why."""

    function: Function
    is_in_python: bool
    reason: str


class GraphBreakWarning(UserWarning):
    """A graph break: part of a program cannot be captured and runs in Python."""


class _Running(threading.local):
    """The forwards that could not be captured in the outermost call that runs in pieces; None outside such calls."""

    found: list[UncapturedForward] | None = None


_running = _Running()


@contextmanager
def reported_failures(function: Function, error: Exception | None) -> Iterator[None]:
    """While active, ``function`` runs in pieces; ``error`` says why, if it has just been found.

    The outermost function warns about everything that was found during its call, unless the call itself fails.
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
        _warn(function, new)


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
    """Names of functions and modules inside ``function``: modules by their path."""
    names = module_names(_modules_in_reach(function))

    def name(part: Function) -> str:
        return names.get(id(getattr(part, "__self__", part))) or name_of(part)

    return name


def _warn(function: Function, breaks: list[UncapturedForward]) -> None:
    name_within = names_within(function)
    reasons: dict[tuple[str, str, str], list[Function]] = {}
    for each in breaks:
        reasons.setdefault(each[1:], []).append(each.function)
    lines = []
    for (at, why, fix), found in list(reasons.items())[:_MOST_LINES]:
        lines.append(", ".join(name_within(one) for one in _innermost(found)))
        lines += [*([f"  at:  {at}"] if at else []), f"  why: {why}", f"  fix: {fix}"]
    more = [f"and {len(reasons) - _MOST_LINES} more lines"] if len(reasons) > _MOST_LINES else []
    beginning = (
        f"{name_of(function)} runs in pieces: the parts named here run in Python, the modules that they call are "
        "compiled. fullgraph=True raises an error instead."
    )
    warn_at_users_line("\n".join([beginning, *lines, *more]), GraphBreakWarning)


def _innermost(functions: list[Function]) -> list[Function]:
    """Those that contain none of the others: a line that breaks a module breaks every module around it."""
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
    """The name of a function, or of a module's class."""
    return getattr(function, "__qualname__", type(function).__qualname__)
