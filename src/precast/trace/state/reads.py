"""Derives what a program may read of Python state from the code that ran while it was traced.

Before: code objects, as they were seen to run
After:  the names of all attributes that this code can look up, and the variables of modules that it refers to
"""

import dis
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from string import Formatter
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any

from torch.nn import functional

from precast.trace.executed_code import Executed, ExecutedCode, is_machinery, is_trusted

Variable = tuple[dict[str, Any], str, str]
"""A namespace, the name of its module, and a name in it."""


@dataclass(frozen=True)
class Reads:
    """What a program may read: ``names`` of attributes, and ``variables``.

    Also, by name: ``functions`` that ran, ``opened`` classes, of which all attributes are relevant, ``appended``
    variables, to which the program only appends, and ``unbound`` globals, which are builtins or missing. ``names`` is
    None if the run was not watched: the program may read and run anything.
    """

    names: frozenset[str] | None
    variables: tuple[Variable, ...] = ()
    functions: frozenset[str] = frozenset()
    opened: frozenset[str] = frozenset()
    appended: frozenset[str] = frozenset()
    unbound: tuple[Variable, ...] = ()
    state_only: bool = False
    """Only data is followed, not code; any data may be read."""

    @classmethod
    def of_all_state(cls, variables: tuple[Variable, ...]) -> "Reads":
        return cls(None, variables, state_only=True)

    @classmethod
    def of(cls, executed: ExecutedCode | None) -> "Reads":
        """What the executed code may read; anything, if it was not watched."""
        if executed is None or not executed.is_complete:
            return cls(None)
        relevant = [each for each in executed.seen.values() if not is_machinery(_module_of(each))]
        names = {name for each in relevant for name in _words_of(each.code)}
        own = [each for each in relevant if not is_trusted(_module_of(each))]
        opened = frozenset(map(class_name, executed.opened))
        functions = frozenset(_function_name(_module_of(each), each.code) for each in relevant)
        layers = [each for each in relevant if _module_of(each).startswith("torch.nn.modules.")]
        variables = (*_each_once(variables_read, own), *_each_once(functions_of_layers, layers))
        appended = _only_appended([each.code for each in own])
        unbound = _each_once(unbound_in, own)
        return cls(frozenset(names | executed.looked_up), variables, functions, opened, appended, unbound)

    def may_read(self, name: Any) -> bool:
        return self.names is None or name in self.names

    def may_read_of_class(self, name: Any) -> bool:
        """The same for a class: Python and torch also read special methods, which no code names."""
        return name not in IGNORED_IN_CLASSES and (is_unnamed_method(name) or self.may_read(name))

    def of_objects(self, kind: type) -> Callable[[Any], bool]:
        """A predicate for the attributes that the program may read on objects of a class."""
        if self.opens(kind):
            return _any_name
        by_position = getattr(kind, _MATCHED, ()) if self.may_read(_MATCHED) else ()
        return (lambda name: self.may_read(name) or name in by_position) if by_position else self.may_read

    def runs(self, function: FunctionType) -> bool:
        name = _function_name(function.__globals__.get("__name__"), function.__code__)
        return self.names is None or name in self.functions

    def only_appends_to(self, name: Any) -> bool:
        return name in self.appended

    def opens(self, kind: type) -> bool:
        """Whether the program may read any attribute of objects of this class."""
        return self.names is None or class_name(kind) in self.opened


def _any_name(_: Any) -> bool:
    return True


def is_unnamed_method(name: Any) -> bool:
    """Whether Python or torch call methods of this name themselves."""
    is_special = isinstance(name, str) and name.startswith("__") and name.endswith("__")
    return is_special or name in _CALLED_BY_TORCH


# Attributes of classes that do not affect behaviour, or are set lazily.
IGNORED_IN_CLASSES = frozenset({
    "__abstractmethods__", "__annotate__", "__annotate_func__", "__annotations__", "__annotations_cache__",
    "__dataclass_fields__", "__dict__", "__doc__", "__firstlineno__", "__module__", "__orig_bases__", "__parameters__",
    "__qualname__", "__slotnames__", "__static_attributes__", "__type_params__", "__weakref__", "_abc_impl",
})  # fmt: skip
# Methods of ``torch.autograd.Function``.
_CALLED_BY_TORCH = frozenset({"backward", "forward", "jvp", "setup_context", "vjp", "vmap"})


def _only_appended(codes: Sequence[CodeType]) -> frozenset[str]:
    """Names that are only used in ``name.append`` or ``name.extend``."""
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
    """Every name and string constant in a function: the attribute names that it may look up."""
    yield from code.co_names
    yield from (word for constant in code.co_consts for word in _words_in(constant))
    if _MATCH_CLASS in code.co_code[::2]:
        yield _MATCHED


_MATCHED = "__match_args__"
_MATCH_CLASS = dis.opmap["MATCH_CLASS"]


def _words_in(constant: Any) -> Iterator[str]:
    """Names in a string: ``"scale"``, ``"config.scale"``, ``"layer_{0.kind}"``; class patterns have several."""
    if isinstance(constant, tuple):
        yield from (word for each in constant for word in _words_in(each))
    elif isinstance(constant, str):
        if "{" in constant:
            yield from (word for field in _fields_of(constant) for word in field.split("."))
        elif all(map(str.isidentifier, words := constant.split("."))):
            yield from words


def _fields_of(text: str) -> list[str]:
    try:
        return [field or "" for _, field, _, _ in Formatter().parse(text)]
    except ValueError:
        return []


def _each_once(find: Callable[..., Iterator[Variable]], executed: Iterable[Executed]) -> tuple[Variable, ...]:
    found = {
        (id(variable[0]), variable[2]): variable
        for each in executed
        for variable in find(each.code, each.variables, _module_of(each))
    }
    return tuple(found.values())


def variables_read(code: CodeType, variables: dict[str, Any], module: str) -> Iterator[Variable]:
    """The globals that a function refers to, and the variables of modules that it may look up in these."""
    visited = {id(variables)}
    for name in code.co_names:
        if name in variables:
            if isinstance(variables[name], ModuleType):
                yield from _named_in(variables[name], code, visited)
            yield variables, module, name
        elif isinstance(sys.modules.get(name), ModuleType):
            # Imported by the function itself.
            yield sys.modules, MODULES, name
            yield from _named_in(sys.modules[name], code, visited)
    if not _BY_TEXT.isdisjoint(code.co_names):
        for name in code.co_consts:
            if isinstance(name, str) and (found := sys.modules.get(name)) is not None:
                yield sys.modules, MODULES, name
                yield from _named_in(found, code, visited)


def functions_of_layers(code: CodeType, variables: dict[str, Any], module: str) -> Iterator[Variable]:
    """The functions of ``torch.nn.functional`` that a layer of torch calls: some programs replace these for all."""
    if any(variables.get(name) is functional for name in code.co_names):
        yield from _named_in(functional, code, set())


def unbound_in(code: CodeType, variables: dict[str, Any], module: str) -> Iterator[Variable]:
    """The globals that a function refers to and that are unbound."""
    extended = 0
    for operation, low in zip(code.co_code[::2], code.co_code[1::2], strict=True):
        argument = extended | low
        extended = argument << 8 if operation == dis.EXTENDED_ARG else 0
        if operation == _LOAD_GLOBAL and (name := code.co_names[argument >> 1]) not in variables:
            yield variables, module, name


_LOAD_GLOBAL = dis.opmap["LOAD_GLOBAL"]
MODULES = "sys.modules"
"""In place of a module's name: the table of imported modules."""
# Names with which modules are looked up by a string.
_BY_TEXT = frozenset({"import_module", "modules"})


_FUNCTIONS = (FunctionType, BuiltinFunctionType)


def _named_in(module: ModuleType, code: CodeType, visited: set[int]) -> Iterator[Variable]:
    held = vars(module)
    if id(held) in visited:
        return
    visited.add(id(held))
    trusted = is_trusted(module.__name__) or is_machinery(module.__name__)
    for name in code.co_names:
        if isinstance(held.get(name), ModuleType):
            yield from _named_in(held[name], code, visited)
        elif name in held and (not trusted or isinstance(held[name], _FUNCTIONS)):
            # Of libraries, only functions, which may be patched.
            yield held, module.__name__, name
