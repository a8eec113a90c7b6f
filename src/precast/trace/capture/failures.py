"""Turns what torch raises while tracing into errors that name the user's line and the way out.

Programs that take gradients or vectorize by themselves, which cannot be recorded from before autograd.

Recorded before autograd, ``cross_entropy_loss`` is one operator. Its gradient reads what the operator computed inside,
``log_softmax``, which nobody recorded: the graph would hold a fake tensor for a constant. What ``torch.func`` does is
recorded there as calls that are no operators. After autograd, all of that are plain operators.
"""

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
# What is said where the memory of a fake tensor is read; torch has no exception of its own for it.
_READS_MEMORY = ("data is not allocated yet", ".numpy() is not supported for tensor subclasses")
# What is said where an operator without a rule for symbolic sizes meets a size that depends on data.
_READS_SIZES = ("SymIntArrayRef expected to contain only concrete integers",)
_ON_OPERATOR = (UnsupportedOperatorException, UnsupportedFakeTensorException, DynamicOutputShapeException)


@contextmanager
def explained_failures() -> Iterator[None]:
    """Errors of the user's own code pass through; those of tracing come out in our words."""
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
    """Whether torch raised this since it traces: the program itself would not have."""
    words = (*_READS_MEMORY, *_READS_SIZES)
    return isinstance(error, (*_ON_DATA, *_ON_OPERATOR)) or any(each in str(error) for each in words)


def _data_dependent(error: BaseException) -> DataDependentError:
    return DataDependentError(
        "The program decides in Python on a value that only running it can give.",
        at=users_line(error.__traceback__),
        why=_first_line(error),
        fix="Use torch.where or torch.cond for the choice, torch._check to state what must hold, "
        "or compute the value outside and pass it in. Where the code is not yours, precast.compile without "
        "fullgraph=True runs the module with that line in Python, and compiles the others; export with "
        "branch_on_data=True makes a torch.cond of an if.",
    )


def _first_line(error: BaseException) -> str:
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__


class InnerTransformError(CaptureError):
    """A graph from before autograd cannot hold what the program does; one from after it can."""

    @classmethod
    def at_line(cls, line: str | None) -> "InnerTransformError":
        return cls(
            "The program takes gradients, or applies another transform of torch.func, by itself.",
            at=line,
            why="a graph of operators from before autograd does not have what their gradients are computed from",
            fix="Use precast.export or precast.trace.capture.capture, which record such programs after autograd.",
        )


def refuse_inner_transforms(module: fx.GraphModule) -> None:
    """Raise if the graph, traced before autograd, lacks what gradients inside the program need."""
    for node in module.graph.nodes:
        if _is_unrecorded(module, node) or _is_functorch_call(node):
            reader = next(iter(node.users), node)
            line = source_line_of(reader) or source_line_of(node)
            raise InnerTransformError.at_line(str(line) if line else None)


def _is_unrecorded(module: fx.GraphModule, node: fx.Node) -> bool:
    value = getattr(module, str(node.target), None) if node.op == "get_attr" else None
    return isinstance(value, torch.Tensor) and is_fake(value)


def _is_functorch_call(node: fx.Node) -> bool:
    """Whether a call came from the functions that torch puts in place of its transforms while it traces so early."""
    return node.op == "call_function" and str(getattr(node.target, "__module__", "")).endswith(".predispatch")
