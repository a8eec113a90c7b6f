"""What nodes call, by name: operators of the libraries that are loaded, and a fixed list of plain functions."""

import math
import operator
import re
from collections.abc import Callable
from typing import Any

import torch
from torch.amp.autocast_mode import _enter_autocast, _exit_autocast

from precast.artifact.schema import damaged
from precast.errors import ArtifactError, ExportError
from precast.export.verifier import ALLOWED_HIGHER_ORDER
from precast.ops.operators_in_files import is_of_numbers_alone, may_be_called_by_files

_OPERATOR = re.compile(r"([A-Za-z_]\w*)\.([A-Za-z_]\w*)\.([A-Za-z_]\w*)")
_PLAIN_NAMES = {
    operator: "add sub mul floordiv truediv mod pow neg pos abs getitem and_ or_ xor not_ eq ne lt le gt ge",
    math: "ceil floor trunc sqrt",
    torch: "sym_int sym_float sym_max sym_min sym_not sym_ite sym_sum sym_sqrt sym_fresh_size",
}
_PLAIN: dict[str, Callable[..., Any]] = {
    f"{module.__name__.removeprefix('_')}.{name}": getattr(module, name)
    for module, names in _PLAIN_NAMES.items()
    for name in names.split()
    if hasattr(module, name)
}
_PLAIN |= {"round": round, "autocast.enter": _enter_autocast, "autocast.exit": _exit_autocast}
_NAMES = {function: name for name, function in _PLAIN.items()}


def target_to_json(target: Any) -> str:
    """``aten.add.Tensor``, ``higher_order.cond``, or the name of a plain function."""
    if isinstance(target, torch._ops.OpOverload):
        namespace, name = target._schema.name.split("::")
        if not may_be_called_by_files(namespace, name) or is_of_numbers_alone(target):
            raise ExportError(
                f"A program that calls {target} cannot be saved.",
                why="files may call operators that are known to check their arguments, and this one is not",
                fix="Use public operators of torch, or decompose it: program.run_decompositions().",
            )
        return f"{namespace}.{name}.{target._overloadname}"
    if isinstance(target, torch._ops.HigherOrderOperator):
        return f"higher_order.{target._name}"
    assert target in _NAMES, f"no name for {target}"
    return _NAMES[target]


def target_from_json(name: str) -> Callable[..., Any]:
    """What the name stands for in this process."""
    if name in _PLAIN:
        return _PLAIN[name]
    if name.startswith("higher_order."):
        short = name.removeprefix("higher_order.")
        if short not in ALLOWED_HIGHER_ORDER:
            raise damaged(f"the program calls {name!r}", "that has no place in an exported program")
        found: Callable[..., Any] = getattr(torch.ops.higher_order, short)
        return found
    match = _OPERATOR.fullmatch(name)
    if match is None:
        raise damaged(f"the program calls {name[:100]!r}", "that is no name of an operator")
    namespace, packet, overload = match.groups()
    if not may_be_called_by_files(namespace, packet):
        raise damaged(f"the program calls {name!r}", "it might reach beyond the program's own tensors")
    try:
        operator_found = getattr(getattr(getattr(torch.ops, namespace), packet), overload)
    except (AttributeError, RuntimeError) as problem:
        raise ArtifactError(
            f"the program calls the operator {name}, which is unknown here",
            why="neither this version of torch nor a loaded library registers it",
            fix="import the library that registers the operator before loading, or install the torch of the file",
        ) from problem
    if not isinstance(operator_found, torch._ops.OpOverload):
        raise damaged(f"the program calls {name!r}", "that is no operator")
    if is_of_numbers_alone(operator_found):
        raise damaged(f"the program calls {name!r}", "it might reach beyond the program's own tensors")
    return operator_found
