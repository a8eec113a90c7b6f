"""Texts of tensors: what ``str``, ``repr``, ``format`` and ``print`` show are values, which a graph does not have.

Before: ``print(x)`` shows ``FakeTensor(..., size=(3,))`` while it is traced, and ``len(str(x))`` is 25 ever after
After:  capture ends with an error at that line; ``precast.compile`` runs it in Python

What shows no tensors is shown again by every call: ``print("shape", x.shape)``.
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
    """Raise if ``func`` makes a text of a tensor. One for a log has no part in what a program computes."""
    if func not in _TEXTS or _is_logging():
        return
    raise DataDependentError(
        "The program makes a text of a tensor.",
        at=innermost_users_line(),
        why="the text shows values that only running the program can give",
        fix="Print what the program returns, or its sizes and types alone. Where the code is not yours, "
        "precast.compile without fullgraph=True runs the module with that line in Python, and compiles the others.",
    )


def _is_logging() -> bool:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_filename == logging.__file__:
            return True
        frame = frame.f_back
    return False


class _Sizes(NamedTuple):
    """A shape that is to be shown, with symbols that a tree shows."""

    items: tuple[Any, ...]


@dataclass(frozen=True)
class Printed:
    """One call of ``print``: texts, numbers that are symbols while tracing, and how they are shown."""

    values: tuple[Any, ...]
    options: Mapping[str, Any]

    @classmethod
    def of(cls, values: Sequence[Any], options: Mapping[str, Any]) -> "Printed":
        return cls(tuple(map(_shown, values)), options)

    def show(self, values: Sequence[Any]) -> None:
        """Print again, with numbers in place of symbols."""
        print(*(torch.Size(each.items) if isinstance(each, _Sizes) else each for each in values), **self.options)


def _shown(value: Any) -> Any:
    """A text, or what one can be made of when all numbers are known."""
    if isinstance(value, torch.Size):
        value = _Sizes(tuple(value))
    leaves, tree = pytree.tree_flatten(value)
    if any(isinstance(leaf, _SYMBOLS) for leaf in leaves):
        return pytree.tree_unflatten(leaves, tree)
    return str(torch.Size(value.items) if isinstance(value, _Sizes) else value)


_SYMBOLS = (torch.SymInt, torch.SymFloat)


@contextmanager
def refused_texts(printed: list[Printed] | None = None) -> Iterator[None]:
    """While active, on this thread, tensors of functionalization refuse, too: torch functions do not see theirs.

    What is printed is noted in ``printed``, and shown where there is no such list. ``print`` makes all its texts before
    it shows the first. A text that is made of a symbol is that of its number, for which the program is compiled then.
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
