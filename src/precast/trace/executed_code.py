"""Records which Python code a program runs while it is traced: its trace depends on that, besides its inputs.

Python's, torch's and our own code is trusted: it is identified by its version.
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
    """Whether a module is Python's, torch's or ours, so that its version identifies its code.

    For metaclasses made in C, such as Cython's, ``module`` is not a string; they cannot be replaced.
    """
    if not isinstance(module, str):
        return module is not None
    package = module.partition(".")[0]
    return package in ("torch", "precast") or package in sys.stdlib_module_names


_MACHINERY = frozenset({"_pytest", "mpmath", "numpy", "pluggy", "precast", "sympy", "unittest"})
_MACHINERY_INSIDE = (
    "namedtuple_", "torch._", "torch.autograd", "torch.fx", "torch.library", "torch.overrides", "torch.types",
    "torch.utils._",
)  # fmt: skip
# Our replacements of library code and of module calls: they read what the original would read.
_STAND_INS = frozenset({"precast.autograd.pieces", "precast.trace.capture.stand_ins"})


def is_machinery(module: str | None) -> bool:
    """Whether code of a module belongs to tracing: it handles tensors and graphs, and reads no user state."""
    name = module or ""
    is_inside = name.partition(".")[0] in _MACHINERY or name.startswith(_MACHINERY_INSIDE)
    return is_inside and name not in _STAND_INS


@dataclass(frozen=True)
class Executed:
    """Code that ran, its globals, and the type of its first argument."""

    code: CodeType
    variables: dict[str, Any]
    owner: type | None


Observer = Callable[[Executed], None]
"""Called with code that is about to run for the first time."""


@dataclass
class ExecutedCode:
    """All code that ran, by its identity; ``observer`` is called with each before it runs.

    ``looked_up`` are the names that it passed to ``getattr`` and ``hasattr``, ``opened`` the classes of objects whose
    attributes it could read all at once. ``is_complete`` says whether all of it was seen: an active debugger prevents
    watching.
    """

    observer: Observer
    seen: dict[int, Executed] = field(default_factory=dict)
    looked_up: set[str] = field(default_factory=set)
    opened: set[type] = field(default_factory=set)
    observers: list[Observer] = field(default_factory=list)
    is_complete: bool = False

    def run(self, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Call ``function`` and watch it, unless that was done already: later runs of a program do the same."""
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

        # The garbage collector may run finalizers, which are not the program's code.
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
        """Record attributes that code may read through functions in C, which are not traced."""
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
    """Record the names passed to ``getattr`` and ``hasattr``, and the objects passed to ``vars`` and ``dir``."""
    get, has, take_all, list_all = builtins.getattr, builtins.hasattr, builtins.vars, builtins.dir

    def noting_getattr(*arguments: Any) -> Any:
        names.update(arguments[1:2])
        return get(*arguments)

    def noting_hasattr(*arguments: Any) -> bool:
        names.update(arguments[1:2])
        return has(*arguments)

    def noting_vars(*arguments: Any) -> Any:
        opened.update(map(type, arguments))
        return take_all(*arguments) if arguments else sys._getframe(1).f_locals

    def noting_dir(*arguments: Any) -> Any:
        opened.update(map(type, arguments))
        return list_all(*arguments) if arguments else sorted(sys._getframe(1).f_locals)

    with (
        patch.object(builtins, "getattr", noting_getattr),
        patch.object(builtins, "hasattr", noting_hasattr),
        patch.object(builtins, "vars", noting_vars),
        patch.object(builtins, "dir", noting_dir),
    ):
        yield


def _is_importing(frame: FrameType | None) -> bool:
    """Whether a module is being imported: code that runs then belongs to the module, not to the program."""
    while frame is not None and frame.f_code is not ExecutedCode.run.__code__:
        # The import system runs before the module's own code.
        if frame.f_code.co_name == "<module>" or frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False


def _looks_for_devices(frame: FrameType) -> bool:
    """Whether tracing itself reads the environment: fake tensors check for a GPU, which reads variables."""
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


# Names with which any attribute may be read; functions that do so; an instruction that compares whole namespaces.
_OPENING = frozenset({"__dict__", "__getattribute__", "__getstate__", "__reduce_ex__", "attrgetter"})
_READERS = (getattr, hasattr, vars, dir)
WATCHED_BUILTINS = frozenset(reader.__name__ for reader in _READERS)
"""The builtins that are patched while a program is watched."""
_COMPARE = dis.opmap["COMPARE_OP"]
_MOST_VALUES = 1000
_ENVIRONMENT = os._Environ.__getitem__.__code__


def _values_at_hand(frame: FrameType) -> Iterator[Any]:
    """A function's arguments, free variables and globals, and the values that its names reach from these."""
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
    """The recorder of the active ``noted_code``, if any."""
    return _watching.get()


def run_watched(function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Call ``function``, watched if ``noted_code`` is active."""
    executed = _watching.get()
    return function(*args, **kwargs) if executed is None else executed.run(function, args, kwargs)
