"""Digests of code objects: equal if they do the same, independent of file and line numbers."""

import hashlib
from collections.abc import Iterator
from types import CodeType, EllipsisType, NoneType

_PLAIN = frozenset({NoneType, EllipsisType, bool, int, float, complex, str, bytes})


def code_digest(code: CodeType) -> bytes:
    """A hash of a function's instructions, constants and names, including those of nested functions."""
    instructions, handlers = code.co_code, code.co_exceptiontable
    facts = (
        code.co_qualname, code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars, code.co_argcount,
        code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags, len(instructions), len(handlers),
    )  # fmt: skip
    parts = [repr(facts).encode(), instructions, handlers, _constants(code.co_consts)]
    return hashlib.sha256(b"".join(parts)).digest()


def _constants(values: tuple[object, ...]) -> bytes:
    if _PLAIN.issuperset(map(type, values)):
        return repr(values).encode()
    return b"(%b)" % b",".join(map(_constant, values))


def _constant(value: object) -> bytes:
    if isinstance(value, CodeType):
        return code_digest(value)
    if isinstance(value, tuple):
        return _constants(value)
    if isinstance(value, frozenset):
        # Sorted, since the order of strings in a set differs between processes.
        return b"{%b}" % b",".join(sorted(map(_constant, value)))
    return f"{type(value).__name__} {value!r};".encode()


def names_in(code: CodeType) -> Iterator[str]:
    """The names of globals and attributes that a function and its nested functions may read."""
    yield from code.co_names
    for inner in inner_code(code):
        yield from names_in(inner)


def inner_code(code: CodeType) -> list[CodeType]:
    """The code of functions, classes and comprehensions nested in a function."""
    return [constant for constant in code.co_consts if isinstance(constant, CodeType)]
