"""The dependencies of a trace beyond its inputs: the code that it ran, and the variables that this code reads.

Before: code objects, as they were seen to run
After:  names (``module``, ``name``) of everything that this code could read, to be described again in another process
"""

import builtins
import dis
import importlib
import importlib.util
import sys
from collections.abc import Iterable, Iterator, Sequence
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

from precast.autograd.warm.code_identity import inner_code
from precast.autograd.warm.description import Description, refusing_unruly
from precast.autograd.warm.nondeterministic import (
    NONDETERMINISTIC_BUILTINS,
    is_nondeterministic,
    is_nondeterministic_value,
    reads_environment,
)
from precast.cache import Indescribable
from precast.trace.executed_code import is_trusted

if TYPE_CHECKING:
    from precast.trace.executed_code import Executed

Dependency = tuple[str, str]
"""A module's name and a variable's."""

ENVIRONMENT: Dependency = ("os", "environ")
ABSENCE = "<absence>"
"""In place of a variable's name: the dependency is that the module does not exist."""

_BACKWARD_MODULES = frozenset({"torch._library.autograd", "torch.autograd.graph"})
_BACKWARD_FUNCTIONS = frozenset({"Function.apply", "Tensor.register_hook"})
_WRITES = frozenset({"STORE_GLOBAL", "DELETE_GLOBAL"})
_GLOBAL_READS = frozenset({"LOAD_GLOBAL", "LOAD_NAME"})
_ATTRIBUTE_READS = frozenset({"LOAD_ATTR", "LOAD_METHOD"})


class DependencyRecorder:
    """Records what the code of a program depends on while it is traced.

    Data are described before the code that reads them runs, since it may also write them; functions and classes
    afterwards, when the patches of tracing have been undone.
    """

    def __init__(self, description: Description) -> None:
        self._description = description
        self._executed: list[Executed] = []
        self.data: dict[Dependency, None] = {}
        self.code: dict[Dependency, None] = {}
        self.failure: Indescribable | None = None
        self.runs_in_backward = False
        """Whether the backward runs code of the program, which is not watched."""

    def observe(self, executed: "Executed") -> None:
        """Record code that is about to run."""
        if self.failure is not None:
            return
        if _is_library_code(executed):
            self.runs_in_backward |= _leaves_code_for_backward(executed)
            return
        self._executed.append(executed)
        try:
            with refusing_unruly():
                for dependency in _dependencies(executed):
                    self._note(dependency)
        except Indescribable as failure:
            self.failure = failure

    def _note(self, dependency: Dependency) -> None:
        if dependency in self.data or dependency in self.code:
            return
        if dependency == ENVIRONMENT or is_code(_variable(*dependency)):
            self.code[dependency] = None
        else:
            self.data[dependency] = None
            describe([dependency], self._description)

    def finish(self) -> None:
        """Describe the functions and classes. Raises Indescribable if anything cannot be compared."""
        if self.failure is not None:
            raise self.failure
        with refusing_unruly():
            describe([each for each in self.code if each != ENVIRONMENT], self._description)
            _check_compared(self._executed, self._description)


def is_code(value: Any) -> bool:
    """Whether a variable is a function, a class or a module, which running code does not change."""
    return isinstance(value, type | ModuleType | FunctionType | BuiltinFunctionType)


def _leaves_code_for_backward(executed: "Executed") -> bool:
    module, name = executed.variables.get("__name__"), executed.code.co_qualname
    return module in _BACKWARD_MODULES or name in _BACKWARD_FUNCTIONS


def _check_compared(executed: "Sequence[Executed]", description: Description) -> None:
    """Check that all code that ran was described, or is nested in other code that ran."""
    compared = {id(function.__code__) for function in description.functions.values()}
    compared |= {id(inner) for each in executed for inner in _inner_most(each.code)}
    for each in executed:
        if id(each.code) not in compared:
            raise Indescribable(f"{each.code.co_qualname}, which cannot be compared")
        if unclear := description.opaque.intersection(_words_of(each.code)):
            raise Indescribable(f"{each.code.co_qualname}, which may read the attribute {min(unclear)}")


def _words_of(code: CodeType) -> Iterator[str]:
    """Every name and string constant in a function: the attribute names that it may look up."""
    yield from code.co_names
    yield from (constant for constant in code.co_consts if isinstance(constant, str))


def _inner_most(code: CodeType) -> Iterator[CodeType]:
    for inner in inner_code(code):
        yield inner
        yield from _inner_most(inner)


def describe(dependencies: Iterable[Dependency], description: Description) -> None:
    """Add the current values of the variables."""
    for module, name in dependencies:
        description.word(f"{module}.{name}")
        description.add(_variable(module, name))


def _is_library_code(executed: "Executed") -> bool:
    module = executed.variables.get("__name__", "")
    # Constructors of namedtuples have their own, empty namespace. Sympy computes with symbolic sizes.
    return is_trusted(module) or module.startswith(("namedtuple_", "sympy.", "mpmath."))


def _dependencies(executed: "Executed") -> Iterator[Dependency]:
    variables = executed.variables
    module = variables.get("__name__", "")
    if vars(sys.modules.get(module, builtins)) is not variables:
        raise Indescribable(f"{executed.code.co_qualname}, which belongs to no module")
    home = executed.code.co_qualname.partition(".")[0]
    if home in variables:
        yield module, home
    elif executed.owner is not None and not is_trusted(executed.owner.__module__):
        # Generated methods, such as those of dataclasses, do not have their qualified name.
        yield executed.owner.__module__, executed.owner.__qualname__.partition(".")[0]
    yield from _read_by(executed.code, module, variables)


def _read_by(code: CodeType, module: str, variables: dict[str, Any]) -> Iterator[Dependency]:
    instructions = list(dis.get_instructions(code))
    for position, instruction in enumerate(instructions):
        following = instructions[position + 1 :]
        if instruction.opname in _WRITES:
            raise Indescribable(f"{code.co_qualname}, which writes the global {instruction.argval}")
        if instruction.opname in _GLOBAL_READS:
            yield from _global(instruction.argval, following, code, module, variables)
        elif instruction.opname == "IMPORT_NAME":
            level = instructions[position - 2].argval or 0
            name = importlib.util.resolve_name("." * level + instruction.argval, variables.get("__package__"))
            yield from _imported(name, instructions[position - 1].argval, code)
    for inner in inner_code(code):
        yield from _read_by(inner, module, variables)


def _global(
    name: str, following: Sequence[dis.Instruction], code: CodeType, module: str, variables: dict[str, Any]
) -> Iterator[Dependency]:
    if name not in variables:
        if name in NONDETERMINISTIC_BUILTINS:
            raise Indescribable(f"{code.co_qualname}, which calls {name}")
    elif isinstance(variables[name], ModuleType):
        yield module, name
        yield from _attributes(variables[name], following, code)
    elif reads_environment(variables[name]):
        yield ENVIRONMENT
    elif is_nondeterministic_value(variables[name]):
        raise Indescribable(f"{code.co_qualname}, which uses {name}")
    else:
        yield module, name


def _imported(name: str, taken: Sequence[str] | None, code: CodeType) -> Iterator[Dependency]:
    """What ``from name import taken`` reads; without ``taken``, any attribute of the module that the code names."""
    if _is_absent(name.partition(".")[0]):
        # The code ran without it.
        yield name.partition(".")[0], ABSENCE
        return
    module = importlib.import_module(name)
    if taken is not None:
        for attribute in taken:
            yield from _attribute(module, attribute, (), code)
        return
    for imported in dict.fromkeys((sys.modules[name.partition(".")[0]], module)):
        yield from _any_attribute(imported, code, {imported.__name__})


def _is_absent(package: str) -> bool:
    return package not in sys.modules and importlib.util.find_spec(package) is None


def _attributes(module: ModuleType, following: Sequence[dis.Instruction], code: CodeType) -> Iterator[Dependency]:
    """What is read from a module: the attribute in the next instruction; otherwise any that the code names."""
    rest = [each for each in following if each.opname != "CACHE"]
    if rest and rest[0].opname in _ATTRIBUTE_READS:
        yield from _attribute(module, rest[0].argval, rest[1:], code)
        return
    yield from _any_attribute(module, code, {module.__name__})


def _any_attribute(module: ModuleType, code: CodeType, visited: set[str]) -> Iterator[Dependency]:
    """All attributes of a module, and of modules in it, that the code names."""
    for name in code.co_names:
        value = vars(module).get(name)
        if not isinstance(value, ModuleType):
            yield from _attribute(module, name, (), code) if name in vars(module) else ()
        elif value.__name__ not in visited:
            visited.add(value.__name__)
            yield from _any_attribute(value, code, visited)


def _attribute(
    module: ModuleType, name: str, following: Sequence[dis.Instruction], code: CodeType
) -> Iterator[Dependency]:
    value = _variable(module.__name__, name)
    if reads_environment(value):
        yield ENVIRONMENT
        return
    if is_nondeterministic(module.__name__, name) or is_nondeterministic_value(value):
        raise Indescribable(f"{code.co_qualname}, which uses {module.__name__}.{name}")
    if isinstance(value, ModuleType):
        yield from _attributes(value, following, code)
    elif callable(value) or not is_trusted(module.__name__):
        yield module.__name__, name


def _variable(module: str, name: str) -> Any:
    """The current value of a variable; modules of loaded packages are imported, as the traced code would have done."""
    if name == ABSENCE:
        return _is_absent(module)
    found = sys.modules.get(module)
    try:
        if found is None and module.partition(".")[0] in sys.modules:
            found = importlib.import_module(module)
        return getattr(found, name)
    except (AttributeError, ImportError):
        raise Indescribable(f"{module}.{name}, which does not exist") from None
