"""Refuses texts of tensors (``str``, ``repr``, ``format``, ``print``): they show values, which a graph does not have.

Before: ``print(x)`` shows ``FakeTensor(..., size=(3,))`` while it is traced, and ``len(str(x))`` is always 25
After:  capture ends with an error at that line; ``precast.compile`` runs it in Python

Prints without tensors are repeated at every call: ``print("shape", x.shape)``. An exported program does not print:
there, what is only told (``print(x)``, ``warnings.warn(f"{x}")``) is told once, without values.
"""

import ast
import builtins
import linecache
import logging
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from types import FrameType
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from torch import Tensor
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.utils import _pytree as pytree

from precast.errors import DataDependentError
from precast.trace.provenance import innermost_users_line, is_users_file, run_users_code

_TEXTS = (Tensor.__repr__, Tensor.__format__)


def refuse_texts(func: object) -> None:
    """Raise if ``func`` makes a text of a tensor, except for logging, which does not affect results."""
    if func not in _TEXTS or _is_logging() or (_tells_once.get() and _is_only_told()):
        return
    raise DataDependentError(
        "The program converts a tensor to a string.",
        at=innermost_users_line(),
        why="the string contains values that are only known at run time",
        fix="Print the result of the program, or only sizes and types. For code that is not yours: precast.compile "
        "without fullgraph=True runs that module in Python and compiles the others.",
    )


def _is_logging() -> bool:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_filename == logging.__file__:
            return True
        frame = frame.f_back
    return False


_tells_once: ContextVar[bool] = ContextVar("tells_once", default=False)
_TELLING = frozenset(
    {"print", "pprint", "warn", "warning", "warning_once", "warn_once", "info", "info_once", "debug", "error", "log"}
)


@contextmanager
def telling_once() -> Iterator[None]:
    """While active, statements that do nothing but tell something may show tensors, whose values are not known."""
    token = _tells_once.set(True)
    try:
        yield
    finally:
        _tells_once.reset(token)


def _is_only_told() -> bool:
    """Whether the text is made within a statement like ``print(…)``, so that no result can depend on it."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code is not run_users_code.__code__:
        if is_users_file(frame.f_code.co_filename) and _is_telling(_statement_of(frame)):
            return True
        frame = frame.f_back
    return False


def _is_telling(statement: ast.stmt | None) -> bool:
    match statement:
        case ast.Expr(value=ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name))):
            return name in _TELLING
        case ast.Raise():
            return True
    return False


def _statement_of(frame: FrameType) -> ast.stmt | None:
    """The simple statement that a frame is at, if its source is known."""
    row, _, column, _ = next(islice(frame.f_code.co_positions(), frame.f_lasti // 2, None), (None,) * 4)
    if row is None or column is None:
        return None
    for statement in _simple_statements(frame.f_code.co_filename):
        first, last = (statement.lineno, statement.col_offset), (statement.end_lineno, statement.end_col_offset)
        if first <= (row, column) < last:
            return statement
    return None


@lru_cache(maxsize=64)
def _simple_statements(filename: str) -> tuple[ast.stmt, ...]:
    try:
        tree = ast.parse("".join(linecache.getlines(filename)))
    except SyntaxError:
        return ()
    return tuple(node for node in ast.walk(tree) if isinstance(node, ast.Expr | ast.Raise))


class _Sizes(NamedTuple):
    """A shape to print, as a tuple, so that symbols in it are leaves."""

    items: tuple[Any, ...]


@dataclass(frozen=True)
class Printed:
    """One call of ``print``: its texts and symbolic numbers, and its options."""

    values: tuple[Any, ...]
    options: Mapping[str, Any]

    @classmethod
    def of(cls, values: Sequence[Any], options: Mapping[str, Any]) -> "Printed":
        return cls(tuple(map(_shown, values)), options)

    def show(self, values: Sequence[Any]) -> None:
        """Repeat the print with the numbers of this call."""
        print(*(torch.Size(each.items) if isinstance(each, _Sizes) else each for each in values), **self.options)


def _shown(value: Any) -> Any:
    """The text of a value, or the value itself if it contains symbols."""
    if isinstance(value, torch.Size):
        value = _Sizes(tuple(value))
    leaves, tree = pytree.tree_flatten(value)
    if any(isinstance(leaf, _SYMBOLS) for leaf in leaves):
        return pytree.tree_unflatten(leaves, tree)
    return str(torch.Size(value.items) if isinstance(value, _Sizes) else value)


_SYMBOLS = (torch.SymInt, torch.SymFloat)


@contextmanager
def refused_texts(printed: list[Printed] | None = None) -> Iterator[None]:
    """While active, functional tensors on this thread refuse, too: torch functions do not see their texts.

    Prints are recorded in ``printed``, or shown if it is None. ``print`` makes all its texts before it shows the first.
    The text of a symbol is that of its number, to which the program is then specialized.
    """
    thread = threading.get_ident()
    show = builtins.print
    original: Callable[[FunctionalTensor], str] = FunctionalTensor.__repr__

    def text(tensor: FunctionalTensor, **options: Any) -> str:
        if threading.get_ident() == thread:
            refuse_texts(Tensor.__repr__)
        return original(tensor, **options)

    def print_whole(*values: Any, **options: Any) -> None:
        if threading.get_ident() != thread:
            show(*values, **options)
        elif printed is None:
            show(*map(str, values), **options)
        else:
            printed.append(Printed.of(values, options))

    with ExitStack() as stack:
        stack.enter_context(patch.object(FunctionalTensor, "__repr__", text))
        stack.enter_context(patch.object(builtins, "print", print_whole))
        for kind, number in ((torch.SymInt, int), (torch.SymFloat, float)):
            stack.enter_context(patch.object(kind, "__repr__", _text_of_number(kind.__repr__, number, thread)))
            stack.enter_context(patch.object(kind, "__format__", _formatted_number(kind.__format__, number, thread)))
        yield


def _text_of_number(original: Callable[[Any], str], number: Callable[[Any], Any], thread: int) -> Callable[[Any], str]:
    def text(symbol: Any) -> str:
        is_asked_by_user = is_users_file(sys._getframe(1).f_code.co_filename)
        if threading.get_ident() != thread or (_tells_once.get() and _is_only_told()):
            return original(symbol)
        return repr(number(symbol)) if is_asked_by_user else original(symbol)

    return text


def _formatted_number(
    original: Callable[[Any, str], str], number: Callable[[Any], Any], thread: int
) -> Callable[[Any, str], str]:
    """The same for formats (``f"{n:.2f}"``), of which torch's symbols know none."""

    def formatted(symbol: Any, form: str) -> str:
        is_asked_by_user = is_users_file(sys._getframe(1).f_code.co_filename)
        if threading.get_ident() != thread or not is_asked_by_user:
            return original(symbol, form)
        return original(symbol, "") if _tells_once.get() and _is_only_told() else format(number(symbol), form)

    return formatted
