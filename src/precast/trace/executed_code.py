"""Notes which Python code a program runs while it is traced: what its trace depends on, beside its inputs.

Whose code is taken for granted: Python's, torch's and our own are what their versions say.
"""

import builtins
import dis
import gc
import os
import sys
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from operator import attrgetter
from types import BuiltinFunctionType, CodeType, FrameType, FunctionType, ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import patch


def is_trusted(module: object) -> bool:
    """Whether a module is Python's, torch's or ours, so that its version tells what it does.

    Metaclasses that were made in C, as Cython's, have something else than a name there: nobody exchanges them.
    """
    if not isinstance(module, str):
        return module is not None
    package = module.partition(".")[0]
    return package in ("torch", "precast") or package in sys.stdlib_module_names


_MACHINERY = (
    "_pytest", "mpmath", "namedtuple_", "numpy", "pluggy", "precast", "sympy", "torch._", "torch.autograd", "torch.fx",
    "torch.library", "torch.overrides", "torch.types", "torch.utils._", "unittest",
)  # fmt: skip
# Ours in place of a library's, or of a module's call, while a program is traced: they read what it would read.
_STAND_INS = frozenset({"precast.autograd.pieces", "precast.trace.capture.stand_ins"})


def is_machinery(module: str | None) -> bool:
    """Whether code of a module is a part of tracing: it handles tensors and graphs, and reads nothing of the user's."""
    return (module or "").startswith(_MACHINERY) and module not in _STAND_INS


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

    ``looked_up`` are the names that it passed to ``getattr`` and ``hasattr``, ``opened`` the classes of the objects of
    which it could take all attributes at once. ``is_complete`` says whether all of it was seen: a debugger that is at
    work keeps us from watching.
    """

    observer: Observer
    seen: dict[int, Executed] = field(default_factory=dict)
    looked_up: set[str] = field(default_factory=set)
    opened: set[type] = field(default_factory=set)
    observers: list[Observer] = field(default_factory=list)
    is_complete: bool = False

    def run(self, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Call ``function`` and watch, unless it was watched already: later runs of one program do the same."""
        if self.is_complete or sys.gettrace() is not None:
            return function(*args, **kwargs)
        seen, observe = self.seen, self.observer

        def note(frame: FrameType, event: str, argument: Any) -> None:
            # By identity: comparing code means comparing all of it.
            if id(frame.f_code) not in seen and not _is_importing(frame) and not _looks_for_devices(frame):
                seen[id(frame.f_code)] = executed = Executed(frame.f_code, frame.f_globals, _first_argument_type(frame))
                if not is_trusted(frame.f_globals.get("__name__")):
                    self._note_lookups_in_c(frame)
                observe(executed)
                for observer in self.observers:
                    observer(executed)

        # The collector may run finalizers of anything that the process has left behind.
        is_collecting = gc.isenabled()
        gc.disable()
        try:
            with _noted_lookups(self.looked_up, self.opened):
                sys.settrace(note)
                try:
                    result = function(*args, **kwargs)
                finally:
                    sys.settrace(None)
        finally:
            if is_collecting:
                gc.enable()
        self.is_complete = True
        return result

    def _note_lookups_in_c(self, frame: FrameType) -> None:
        """Note what code is about to read of objects in ways that Python does not tell of."""
        values, code = list(_values_at_hand(frame)), frame.f_code
        for value in values:
            if isinstance(value, attrgetter):
                self.looked_up.update(word for path in value.__reduce__()[1] for word in path.split("."))
            elif isinstance(value, (BuiltinFunctionType, FunctionType)):
                # It may be called under another name.
                self.looked_up.add(value.__name__)
        if not _OPENING.isdisjoint(code.co_names) or any(value is each for value in values for each in _READERS):
            self.opened.update(map(type, values))
        elif _COMPARE in code.co_code[::2]:
            self.opened.update({SimpleNamespace}.intersection(map(type, values)))


@contextmanager
def _noted_lookups(names: set[str], opened: set[type]) -> Iterator[None]:
    """Note the names by which attributes are looked up, which code need not spell out, and what is looked at whole."""
    get, has, take_all = builtins.getattr, builtins.hasattr, builtins.vars

    def noting_getattr(*arguments: Any) -> Any:
        names.update(arguments[1:2])
        return get(*arguments)

    def noting_hasattr(*arguments: Any) -> bool:
        names.update(arguments[1:2])
        return has(*arguments)

    def noting_vars(*arguments: Any) -> Any:
        opened.update(map(type, arguments))
        return take_all(*arguments) if arguments else sys._getframe(1).f_locals

    with (
        patch.object(builtins, "getattr", noting_getattr),
        patch.object(builtins, "hasattr", noting_hasattr),
        patch.object(builtins, "vars", noting_vars),
    ):
        yield


def _is_importing(frame: FrameType | None) -> bool:
    """Whether a module is being imported: what that runs belongs to the module, not to the program."""
    while frame is not None and frame.f_code is not ExecutedCode.run.__code__:
        # What looks for the module comes before the module's own code.
        if frame.f_code.co_name == "<module>" or frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False


def _looks_for_devices(frame: FrameType) -> bool:
    """Whether the environment is read by tracing itself: fake tensors ask whether there is a GPU, which looks there."""
    if frame.f_code is not _ENVIRONMENT:
        return False
    caller = frame.f_back
    while caller is not None and caller.f_code is not ExecutedCode.run.__code__:
        name = caller.f_globals.get("__name__")
        if is_machinery(name) or not is_trusted(name):
            return is_machinery(name)
        caller = caller.f_back
    return False


def _first_argument_type(frame: FrameType) -> type | None:
    code = frame.f_code
    return type(frame.f_locals[code.co_varnames[0]]) if code.co_argcount else None


# Names by which any attribute may be read; functions that do, under another name; what compares namespaces as a whole.
_OPENING = frozenset({"__dict__", "__getattribute__", "__getstate__", "__reduce_ex__", "attrgetter"})
_READERS = (getattr, hasattr, vars)
_COMPARE = dis.opmap["COMPARE_OP"]
_MOST_VALUES = 1000
_ENVIRONMENT = os._Environ.__getitem__.__code__


def _values_at_hand(frame: FrameType) -> Iterator[Any]:
    """What a function is given, closes over and reads by name, and what its names lead to from there."""
    names = frame.f_code.co_names
    variables = {name: frame.f_globals[name] for name in names if name in frame.f_globals} | frame.f_locals
    waiting, visited = deque(variables.values()), set[int]()
    while waiting and len(visited) < _MOST_VALUES:
        value = waiting.popleft()
        if id(value) not in visited:
            visited.add(id(value))
            yield value
            held = {} if isinstance(value, type | ModuleType) else getattr(value, "__dict__", {})
            for holder in (held, held.get("_modules", {})):
                waiting.extend(holder[name] for name in names if name in holder)


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


def code_being_noted() -> ExecutedCode | None:
    """What ``noted_code`` collects now."""
    return _watching.get()


def run_watched(function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Call ``function``, watched if anyone wants to know."""
    executed = _watching.get()
    return function(*args, **kwargs) if executed is None else executed.run(function, args, kwargs)
