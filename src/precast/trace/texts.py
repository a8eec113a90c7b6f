"""Texts of tensors: what ``str``, ``repr``, ``format`` and ``print`` show are values, which a graph does not have.

Before: ``print(x)`` shows ``FakeTensor(..., size=(3,))`` while it is traced, and ``len(str(x))`` is 25 ever after
After:  capture ends with an error at that line; ``precast.compile`` runs it in Python
"""

import builtins
import logging
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any
from unittest.mock import patch

from torch import Tensor
from torch._subclasses.functional_tensor import FunctionalTensor

from precast.errors import DataDependentError
from precast.trace.provenance import innermost_users_line

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


@contextmanager
def refused_texts() -> Iterator[None]:
    """While active, on this thread, tensors of functionalization refuse, too: torch functions do not see theirs.

    ``print`` makes all its texts before it shows the first.
    """
    thread = threading.get_ident()
    show = builtins.print
    original: Callable[[FunctionalTensor], str] = FunctionalTensor.__repr__

    def text(tensor: FunctionalTensor, **options: Any) -> str:
        if threading.get_ident() == thread:
            refuse_texts(Tensor.__repr__)
        return original(tensor, **options)

    def print_whole(*values: Any, **options: Any) -> None:
        show(*(map(str, values) if threading.get_ident() == thread else values), **options)

    with patch.object(FunctionalTensor, "__repr__", text), patch.object(builtins, "print", print_whole):
        yield
