"""A second try with Python kernels, for operators whose C++ kernels need concrete sizes or branch on data."""

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from torch._subclasses.fake_tensor import DataDependentOutputException

from precast._torch_compat import python_kernels
from precast.errors import DataDependentError, PrecastError

_Given = ParamSpec("_Given")
_Result = TypeVar("_Result")


def again_with_python_kernels(function: Callable[_Given, _Result]) -> Callable[_Given, _Result]:
    """``function``, which traces a program, retried with Python kernels if a kernel needed data or concrete sizes."""

    @wraps(function)
    def run(*args: _Given.args, **kwargs: _Given.kwargs) -> _Result:
        try:
            return function(*args, **kwargs)
        except (PrecastError, RuntimeError) as first:
            if not _wants_data(first):
                raise
            try:
                with python_kernels():
                    return function(*args, **kwargs)
            except (PrecastError, RuntimeError):
                raise first from first.__cause__

    return run


def _wants_data(problem: Exception) -> bool:
    is_on_data = isinstance(problem, DataDependentError | DataDependentOutputException)
    return is_on_data or "expected to contain only concrete integers" in str(problem)
