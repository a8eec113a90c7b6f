"""Notes which Python code a program runs while it is traced: what its trace depends on, beside its inputs."""

import gc
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from types import CodeType, FrameType
from typing import Any


@dataclass(frozen=True)
class Executed:
    """Code that ran, the globals it ran over, and of what type its first argument was."""

    code: CodeType
    variables: dict[str, Any]
    owner: type | None


Observer = Callable[[Executed], None]
"""Is told of code when it is about to run for the first time."""


@dataclass
class ExecutedCode:
    """All code that ran, by its identity; ``observer`` sees each as it comes.

    ``is_complete`` says whether all of it was seen: a debugger that is at work keeps us from watching.
    """

    observer: Observer
    seen: dict[int, Executed] = field(default_factory=dict)
    is_complete: bool = False

    def run(self, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Call ``function`` and watch, unless it was watched already: later runs of one program do the same."""
        if self.is_complete or sys.gettrace() is not None:
            return function(*args, **kwargs)
        seen, observe = self.seen, self.observer

        def note(frame: FrameType, event: str, argument: Any) -> None:
            # By identity: comparing code means comparing all of it.
            if id(frame.f_code) not in seen and not _is_importing(frame):
                seen[id(frame.f_code)] = executed = Executed(frame.f_code, frame.f_globals, _first_argument_type(frame))
                observe(executed)

        # The collector may run finalizers of anything that the process has left behind.
        is_collecting = gc.isenabled()
        gc.disable()
        sys.settrace(note)
        try:
            result = function(*args, **kwargs)
        finally:
            sys.settrace(None)
            if is_collecting:
                gc.enable()
        self.is_complete = True
        return result


def _is_importing(frame: FrameType | None) -> bool:
    """Whether a module is being imported: what that runs belongs to the module, not to the program."""
    while frame is not None and frame.f_code is not ExecutedCode.run.__code__:
        if frame.f_code.co_name == "<module>":
            return True
        frame = frame.f_back
    return False


def _first_argument_type(frame: FrameType) -> type | None:
    code = frame.f_code
    return type(frame.f_locals[code.co_varnames[0]]) if code.co_argcount else None


_watching: ContextVar[ExecutedCode | None] = ContextVar("executed_code", default=None)


@contextmanager
def noted_code(observer: Observer) -> Iterator[ExecutedCode]:
    """While active, the first run of the user's program on this thread is watched."""
    executed = ExecutedCode(observer)
    token = _watching.set(executed)
    try:
        yield executed
    finally:
        _watching.reset(token)


def run_watched(function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Call ``function``, watched if anyone wants to know."""
    executed = _watching.get()
    return function(*args, **kwargs) if executed is None else executed.run(function, args, kwargs)
