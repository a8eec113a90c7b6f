"""Turns what torch raises while tracing into errors that name the user's line and a fix.

Also refuses programs that take gradients or vectorize by themselves when they are traced pre-dispatch. There,
``cross_entropy_loss`` is one operator, and its gradient reads the ``log_softmax`` inside of it, which was not recorded:
the graph would have a fake tensor as a constant. Transforms of ``torch.func`` are recorded there as calls that are not
operators. Traced after autograd, all of that is plain operators.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import fx
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedFakeTensorException,
    UnsupportedOperatorException,
    is_fake,
)
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

from precast.errors import CaptureError, DataDependentError, UnsupportedOpError
from precast.graph.nodes import source_line_of
from precast.trace.provenance import users_line

_ON_DATA = (DataDependentOutputException, GuardOnDataDependentSymNode)
# Messages of torch when a fake tensor's memory is read; there is no exception class for it.
_READS_MEMORY = ("data is not allocated yet", ".numpy() is not supported for tensor subclasses")
# Messages of torch when an operator without support for symbolic sizes gets a data-dependent size.
_READS_SIZES = ("SymIntArrayRef expected to contain only concrete integers",)
# What torch adds to such messages for its own developers.
_NOISE = re.compile(r" \(unhinted: .*")
_ON_OPERATOR = (UnsupportedOperatorException, UnsupportedFakeTensorException, DynamicOutputShapeException)


@contextmanager
def explained_failures() -> Iterator[None]:
    """While active, errors of tracing become PrecastErrors; errors of the user's own code pass through."""
    try:
        yield
    except _ON_DATA as error:
        raise _data_dependent(error) from error
    except _ON_OPERATOR as error:
        raise UnsupportedOpError(
            f"The operator {getattr(error, 'func', '')} cannot be traced.".replace("  ", " "),
            at=users_line(error.__traceback__),
            why=_first_line(error) or "it has no kernel for fake tensors, so the shape of its result is unknown",
            fix="Give the operator a fake kernel with torch.library.register_fake, or move it out of the program.",
        ) from error
    except RuntimeError as error:
        if not any(words in str(error) for words in (*_READS_MEMORY, *_READS_SIZES)):
            raise
        raise _data_dependent(error) from error


def is_of_tracing(error: BaseException) -> bool:
    """Whether torch raised this because it is tracing; in eager, the program would not have raised it."""
    words = (*_READS_MEMORY, *_READS_SIZES)
    return isinstance(error, (*_ON_DATA, *_ON_OPERATOR)) or any(each in str(error) for each in words)


def _data_dependent(error: BaseException) -> DataDependentError:
    return DataDependentError(
        "The program uses the value of a tensor in Python, which is only known at run time.",
        at=users_line(error.__traceback__),
        why=f"a branch, or a number that Python needs, depends on it ({_NOISE.sub('', _first_line(error))})",
        fix="Use torch.where or torch.cond instead of a branch, state what must hold with torch._check, or compute the "
        "value outside and pass it in. For code that is not yours: precast.compile without fullgraph=True runs that "
        "module in Python and compiles the others; precast.export(branch_on_data=True) turns an if into a torch.cond, "
        "and constant_arguments=… treats the arguments that decide as constants.",
    )


def _first_line(error: BaseException) -> str:
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__


class InnerTransformError(CaptureError):
    """The program cannot be traced pre-dispatch; it can be traced after autograd."""

    @classmethod
    def at_line(cls, line: str | None) -> "InnerTransformError":
        return cls(
            "The program takes gradients, or applies another transform of torch.func, by itself.",
            at=line,
            why="a graph of operators from before autograd lacks the values that gradients are computed from",
            fix="Use precast.export or precast.trace.capture.capture, which record such programs after autograd.",
        )


def refuse_inner_transforms(module: fx.GraphModule) -> None:
    """Raise if a pre-dispatch graph lacks values that gradients inside the program need."""
    for node in module.graph.nodes:
        if _is_unrecorded(module, node) or _is_functorch_call(node):
            reader = next(iter(node.users), node)
            line = source_line_of(reader) or source_line_of(node)
            raise InnerTransformError.at_line(str(line) if line else None)


def _is_unrecorded(module: fx.GraphModule, node: fx.Node) -> bool:
    value = getattr(module, str(node.target), None) if node.op == "get_attr" else None
    return isinstance(value, torch.Tensor) and is_fake(value)


def _is_functorch_call(node: fx.Node) -> bool:
    """Whether a call is of the functions that replace torch's transforms in pre-dispatch tracing."""
    return node.op == "call_function" and str(getattr(node.target, "__module__", "")).endswith(".predispatch")
