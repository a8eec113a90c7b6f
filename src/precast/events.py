"""Events of a compilation, sent to a listener if there is one: stages, passes, files that were built.

Usually there is none: then an event costs one lookup, and nothing is kept.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import wraps
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

Listener = Callable[[object], None]
Value = TypeVar("Value")
Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

_listener: ContextVar[Listener | None] = ContextVar("precast_listener", default=None)


@dataclass(frozen=True)
class StageDone:
    """A function of `pipeline.WAYS` has run; ``started`` is a time of ``time.perf_counter``."""

    function: str
    started: float
    seconds: float


@dataclass(frozen=True)
class PassDone(Generic[Value]):
    """A pass has run over a graph or a loop program; if it had nothing to do, ``after`` is ``before``."""

    name: str
    seconds: float
    before: Value
    after: Value

    @property
    def has_changed(self) -> bool:
        return self.after is not self.before


@dataclass(frozen=True)
class UnitBuilt:
    """A generated source file was compiled into an object file, or its object file was found in the cache."""

    name: str
    started: float
    seconds: float
    was_stored: bool


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """While active, the listener receives the events of this thread and of the threads started on its behalf."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


def tell(event: object) -> None:
    """Send the event to the listener, if there is one."""
    if (listener := _listener.get()) is not None:
        listener(event)


def stage(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Mark a function as a stage: each run of it is an event."""
    name = f"{function.__module__}:{function.__qualname__}"

    @wraps(function)
    def timed(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        if _listener.get() is None:
            return function(*args, **kwargs)
        started = time.perf_counter()
        result = function(*args, **kwargs)
        tell(StageDone(name, started, time.perf_counter() - started))
        return result

    return timed


def apply_pass(a_pass: Callable[Concatenate[Value, ...], Value], before: Value, *arguments: Any) -> Value:
    """Run the pass over ``before``, send the event, and return the result."""
    started = time.perf_counter()
    after = a_pass(before, *arguments)
    tell(PassDone(a_pass.__name__, time.perf_counter() - started, before, after))
    return after
