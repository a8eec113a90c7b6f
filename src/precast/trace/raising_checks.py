"""Checks in a graph that stand for a branch of the program which only raises: their messages name the error.

Read when compiled programs run, so nothing that traces is imported here.
"""

import builtins
import re
import sys

from torch import fx

_SHOWN = 300
_RAISES = "the program raises "
_RAISED = re.compile(rf"{_RAISES}([\w.<>]+): (.*)", re.DOTALL)
# A text of a tensor while tracing; texts of its sizes and of its device may stand inside.
_SHOWN_TENSOR = re.compile(r"FakeTensor\((?:[^()]|\([^()]*\))*\)")


def check_message(error: Exception) -> str:
    """The message of the check that stands for this error, in one line; what it shows of tensors are no values."""
    kind = type(error)
    name = kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    return f"{_RAISES}{name}: {' '.join(_SHOWN_TENSOR.sub('<tensor>', str(error)).split())}"[:_SHOWN]


def is_check(node: fx.Node) -> bool:
    """Whether a node checks that the program does not go where it raises."""
    return any(isinstance(argument, str) and argument.startswith(_RAISES) for argument in node.args)


def is_failed_check(error: BaseException | None) -> bool:
    """Whether an error says that the program would have gone where it raises."""
    return error is not None and (_RAISED.match(str(error)) is not None or is_failed_check(error.__cause__))


def raised_by_program(error: Exception) -> Exception | None:
    """The error of the program that a check which failed stands for, as far as its class can be found again."""
    told = _RAISED.match(str(error))
    if told is None:
        return None
    module, _, name = told[1].rpartition(".")
    kind = getattr(sys.modules.get(module, builtins), name, None)
    if not (isinstance(kind, type) and issubclass(kind, Exception)):
        return None
    try:
        return kind(told[2])
    except TypeError:
        return None
