"""What happens while something is compiled, told to whoever listens: stages, passes, files that were built.

Nobody listens as a rule: then it costs one look, and nothing is kept.
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
    """A function of `pipeline.WAYS` has run, from ``started`` on, by ``time.perf_counter``."""

    function: str
    started: float
    seconds: float


@dataclass(frozen=True)
class PassDone(Generic[Value]):
    """A pass has run over a graph or a loop program; one that had nothing to do returned what it was given."""

    name: str
    seconds: float
    before: Value
    after: Value

    @property
    def has_changed(self) -> bool:
        return self.after is not self.before


@dataclass(frozen=True)
class UnitBuilt:
    """A generated source file became an object file, or was found to be one already."""

    name: str
    started: float
    seconds: float
    was_stored: bool


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """While active, the listener is told what happens on this thread, and on those that are started for it."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


def tell(event: object) -> None:
    """Tell who listens, if anyone does."""
    if (listener := _listener.get()) is not None:
        listener(event)


def stage(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """The function as a stage: how long it runs is told."""
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
    """What the pass makes of ``before``; that it ran is told."""
    started = time.perf_counter()
    after = a_pass(before, *arguments)
    tell(PassDone(a_pass.__name__, time.perf_counter() - started, before, after))
    return after
