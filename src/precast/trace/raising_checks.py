"""Checks in a graph that replace a branch of the program that only raises: their messages name the error.

Used when compiled programs run, so no tracing code is imported here.
"""

import builtins
import re
import sys

from torch import fx

_SHOWN = 300
_RAISES = "the program raises "
_RAISED = re.compile(rf"{_RAISES}([\w.<>]+): (.*)", re.DOTALL)
# The text of a tensor while tracing, which may contain texts of its sizes and its device.
_SHOWN_TENSOR = re.compile(r"FakeTensor\((?:[^()]|\([^()]*\))*\)")


def check_message(error: Exception) -> str:
    """The one-line message of the check for this error; texts of traced tensors, which have no values, are removed."""
    kind = type(error)
    name = kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    return f"{_RAISES}{name}: {' '.join(_SHOWN_TENSOR.sub('<tensor>', str(error)).split())}"[:_SHOWN]


def is_check(node: fx.Node) -> bool:
    """Whether a node checks that the program does not take a branch that raises."""
    return any(isinstance(argument, str) and argument.startswith(_RAISES) for argument in node.args)


def is_failed_check(error: BaseException | None) -> bool:
    """Whether an error means that the program would have taken a branch that raises."""
    return error is not None and (_RAISED.match(str(error)) is not None or is_failed_check(error.__cause__))


def raised_by_program(error: Exception) -> Exception | None:
    """The program's error for a failed check; None if its class cannot be found."""
    found = _RAISED.match(str(error))
    if found is None:
        return None
    module, _, name = found[1].rpartition(".")
    kind = getattr(sys.modules.get(module, builtins), name, None)
    if not (isinstance(kind, type) and issubclass(kind, Exception)):
        return None
    try:
        return kind(found[2])
    except TypeError:
        return None
