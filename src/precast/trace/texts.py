"""Refuses texts of tensors (``str``, ``repr``, ``format``, ``print``): they show values, which a graph does not have.

Before: ``print(x)`` shows ``FakeTensor(..., size=(3,))`` while it is traced, and ``len(str(x))`` is always 25
After:  capture ends with an error at that line; ``precast.compile`` runs it in Python

Prints without tensors are repeated at every call: ``print("shape", x.shape)``.
"""

import builtins
import logging
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from torch import Tensor
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.utils import _pytree as pytree

from precast.errors import DataDependentError
from precast.trace.provenance import innermost_users_line, is_users_file

_TEXTS = (Tensor.__repr__, Tensor.__format__)


def refuse_texts(func: object) -> None:
    """Raise if ``func`` makes a text of a tensor, except for logging, which does not affect results."""
    if func not in _TEXTS or _is_logging():
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
        yield


def _text_of_number(original: Callable[[Any], str], number: Callable[[Any], Any], thread: int) -> Callable[[Any], str]:
    def text(symbol: Any) -> str:
        is_asked_by_user = is_users_file(sys._getframe(1).f_code.co_filename)
        return repr(number(symbol)) if is_asked_by_user and threading.get_ident() == thread else original(symbol)

    return text
