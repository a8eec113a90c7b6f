"""What a program learns when it asks for the type of a value: that of eager's value.

Before: ``type(x) is torch.Tensor`` is false, since ``x`` is a ``FakeTensor``; ``type(x.shape[0])`` is ``torch.SymInt``
After:  it is true; ``int``

The user's modules in which code names ``type`` have a variable of that name while the program is traced.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor

from precast.trace.executed_code import Executed, code_being_noted, is_machinery, is_trusted

_NAME = "type"
_STANDS_FOR: dict[type, type] = {
    FakeTensor: torch.Tensor, FunctionalTensor: torch.Tensor, torch.SymInt: int, torch.SymFloat: float,
    torch.SymBool: bool,
}  # fmt: skip


class _KindOfType(type):
    def __call__(cls, *arguments: Any, **options: Any) -> Any:
        if cls is not _TypeOfEager:
            return super().__call__(*arguments, **options)
        if len(arguments) != 1:
            return type(*arguments, **options)
        (value,) = arguments
        found = type(value)
        if found in (FakeTensor, FunctionalTensor) and isinstance(value, torch.nn.Parameter):
            return torch.nn.Parameter
        return _TypeOfEager if found is type else _STANDS_FOR.get(found, found)

    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, type) if cls is _TypeOfEager else super().__instancecheck__(value)

    def __subclasscheck__(cls, other: type) -> bool:
        return issubclass(other, type) if cls is _TypeOfEager else super().__subclasscheck__(other)


class _TypeOfEager(type, metaclass=_KindOfType):
    """``type`` itself, but for the types of tracing."""


@contextmanager
def types_of_eager() -> Iterator[None]:
    """While active, code of the user's that asks for types is told eager's."""
    executed, changed = code_being_noted(), list[dict[str, Any]]()

    def tell(each: Executed) -> None:
        module = each.variables.get("__name__")
        is_asking = _NAME in each.code.co_names and _NAME not in each.variables
        if is_asking and not is_trusted(module) and not is_machinery(module):
            each.variables[_NAME] = _TypeOfEager
            changed.append(each.variables)

    if executed is None:
        yield
        return
    for each in list(executed.seen.values()):
        tell(each)
    executed.observers.append(tell)
    try:
        yield
    finally:
        executed.observers.remove(tell)
        for variables in changed:
            del variables[_NAME]
