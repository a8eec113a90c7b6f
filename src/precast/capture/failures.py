"""Turns what torch raises while tracing into errors that name the user's line and the way out."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedFakeTensorException,
    UnsupportedOperatorException,
)
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

from precast.errors import DataDependentError, UnsupportedOpError
from precast.tracing.provenance import users_line

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


def _data_dependent(error: BaseException) -> DataDependentError:
    return DataDependentError(
        "The program decides in Python on a value that only running it can give.",
        at=users_line(error.__traceback__),
        why=_first_line(error),
        fix="Use torch.where or torch.cond for the choice, torch._check to state what must hold, "
        "or compute the value outside and pass it in. Where the code is not yours, precast.compile without "
        "fullgraph=True runs the module with that line in Python, and compiles the others.",
    )


def _first_line(error: BaseException) -> str:
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__
