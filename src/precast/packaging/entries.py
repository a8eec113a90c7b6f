"""What people give to be packaged, as exported programs by name."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from precast.errors import InputTypeError, InputValueError
from precast.export.export import export
from precast.export.program import ExportedProgram

DEFAULT_NAME = "forward"
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,99}")


class CallableModule(torch.nn.Module):
    """A plain function as a module, so that it can be exported; its arguments keep their names."""

    def __init__(self, function: Callable[..., Any]):
        super().__init__()

        @functools.wraps(function)
        def forward(*args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs)

        self.forward = forward


def exported_entries(
    given: object,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None,
    dynamic_shapes: Any,
) -> dict[str, ExportedProgram]:
    """The programs to package, by the name of their entry."""
    entries = given if isinstance(given, Mapping) else {DEFAULT_NAME: given}
    if not entries:
        raise InputValueError("There is nothing to package.", why="no entry was given", fix="Give at least one.")
    for name in entries:
        _check_name(name)
    return {str(name): _exported(str(name), each, args, kwargs, dynamic_shapes) for name, each in entries.items()}


def _check_name(name: object) -> None:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InputValueError(
            f"{name!r} cannot name an entry.",
            why="names start with a letter and go on with letters, digits, '_', '.' and '-'",
            fix="Choose such a name, for example 'train_step'.",
        )


def _exported(
    name: str, given: object, args: Sequence[Any], kwargs: Mapping[str, Any] | None, dynamic_shapes: Any
) -> ExportedProgram:
    if isinstance(given, ExportedProgram):
        return given
    if isinstance(given, tuple) and 2 <= len(given) <= 4:
        module, args, kwargs, dynamic_shapes = (*given, None, None)[:4]
        return _exported(name, module, args, kwargs, dynamic_shapes)
    if callable(given):
        return export(as_module(given), tuple(args), kwargs, dynamic_shapes=dynamic_shapes)
    raise InputTypeError(
        f"The entry {name!r} is a {type(given).__name__}.",
        why="what is packaged is a module, a function, an exported program, or several of them by name",
        fix="Pass a module and its arguments, or {'forward': (module, args), 'eval': (module, args)}.",
    )


def as_module(given: Callable[..., Any]) -> torch.nn.Module:
    """The module, or a module that calls the function."""
    return given if isinstance(given, torch.nn.Module) else CallableModule(given)
