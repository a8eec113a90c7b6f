"""What a program could read of Python's state, told by the code that ran while it was traced.

Before: code objects, as they were seen to run
After:  the names of all attributes that this code can look up, and the variables of modules that it refers to
"""

import dis
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from types import CodeType, FunctionType, ModuleType
from typing import Any

from precast.tracing.executed_code import Executed, ExecutedCode
from precast.tracing.trusted_code import is_machinery, is_trusted

Variable = tuple[dict[str, Any], str, str]
"""A namespace, the name of its module, and a name in it."""


@dataclass(frozen=True)
class Reads:
    """The ``names`` of attributes, the ``variables``, and by their names:

    ``functions`` that ran, ``opened`` classes, of which all attributes count, and ``appended`` variables, with which
    the program does nothing but append. ``names`` are None where it was not watched: it may read and run anything.
    """

    names: frozenset[str] | None
    variables: tuple[Variable, ...] = ()
    functions: frozenset[str] = frozenset()
    opened: frozenset[str] = frozenset()
    appended: frozenset[str] = frozenset()
    state_only: bool = False
    """Anything may be read that is data; code is not followed."""

    @classmethod
    def of_all_state(cls, variables: tuple[Variable, ...]) -> "Reads":
        return cls(None, variables, state_only=True)

    @classmethod
    def of(cls, executed: ExecutedCode | None) -> "Reads":
        """What the code that ran could read; where it was not watched, anything."""
        if executed is None or not executed.is_complete:
            return cls(None)
        telling = [each for each in executed.seen.values() if not is_machinery(_module_of(each))]
        names = {name for each in telling for name in _words_of(each.code)}
        own = [each for each in telling if not is_trusted(_module_of(each))]
        opened = frozenset(map(class_name, executed.opened))
        functions = frozenset(_function_name(_module_of(each), each.code) for each in telling)
        variables, appended = tuple(_variables_of(own)), _only_appended([each.code for each in own])
        return cls(frozenset(names | executed.looked_up), variables, functions, opened, appended)

    def may_read(self, name: Any) -> bool:
        return self.names is None or name in self.names

    def runs(self, function: FunctionType) -> bool:
        name = _function_name(function.__globals__.get("__name__"), function.__code__)
        return self.names is None or name in self.functions

    def only_appends_to(self, name: Any) -> bool:
        return name in self.appended

    def opens(self, kind: type) -> bool:
        """Whether the program may read any attribute of objects of this class."""
        return self.names is None or class_name(kind) in self.opened


def _only_appended(codes: Sequence[CodeType]) -> frozenset[str]:
    """Names that stand before ``.append`` or ``.extend`` wherever they stand."""
    appended: set[str] = set()
    used: set[str] = set()
    for code in codes:
        if not _GROWING.intersection(code.co_names):
            used.update(_words_of(code), code.co_freevars)
            continue
        instructions = [each for each in dis.get_instructions(code) if each.opname != "CACHE"]
        used.update(constant for constant in code.co_consts if isinstance(constant, str))
        for instruction, following in zip(instructions, [*instructions[1:], None], strict=True):
            if instruction.opname.startswith("LOAD_") and isinstance(name := instruction.argval, str):
                grows = following is not None and following.opname in _LOOKUPS and following.argval in _GROWING
                (appended if grows else used).add(name)
    return frozenset(appended - used)


_LOOKUPS = ("LOAD_METHOD", "LOAD_ATTR")
_GROWING = frozenset({"append", "extend"})


def _function_name(module: Any, code: CodeType) -> str:
    return f"{module} {code.co_qualname}"


def class_name(kind: type) -> str:
    return f"{kind.__module__} {kind.__qualname__}"


def _module_of(executed: Executed) -> str:
    name = executed.variables.get("__name__")
    return name if isinstance(name, str) else ""


def _words_of(code: CodeType) -> Iterator[str]:
    """Every name and every text in a function: what it could look an attribute up by."""
    yield from code.co_names
    yield from (constant for constant in code.co_consts if isinstance(constant, str) and constant.isidentifier())


def _variables_of(executed: Iterable[Executed]) -> Iterator[Variable]:
    seen: set[tuple[int, str]] = set()
    for each in executed:
        for found in variables_read(each.code, each.variables, _module_of(each)):
            if (key := (id(found[0]), found[2])) not in seen:
                seen.add(key)
                yield found


def variables_read(code: CodeType, variables: dict[str, Any], module: str) -> Iterator[Variable]:
    """The globals that a function refers to, and variables of modules that it names after one of these."""
    visited = {id(variables)}
    for name in code.co_names:
        if name in variables:
            if isinstance(variables[name], ModuleType):
                yield from _named_in(variables[name], code, visited)
            yield variables, module, name
        elif isinstance(sys.modules.get(name), ModuleType):
            # Imported by the function itself.
            yield from _named_in(sys.modules[name], code, visited)


def _named_in(module: ModuleType, code: CodeType, visited: set[int]) -> Iterator[Variable]:
    held = vars(module)
    if id(held) in visited:
        return
    visited.add(id(held))
    trusted = is_trusted(module.__name__) or is_machinery(module.__name__)
    for name in code.co_names:
        if isinstance(held.get(name), ModuleType):
            yield from _named_in(held[name], code, visited)
        elif name in held and (not trusted or isinstance(held[name], FunctionType)):
            # Of libraries, only what people put other code into.
            yield held, module.__name__, name
