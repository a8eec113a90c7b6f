"""Names of call targets: operators of the loaded libraries, and a fixed list of plain functions.

Also checks dotted names of state and submodules in files. GraphModule writes such names into Python source, between
double quotes: a name that could end the quotes is refused. No file that Precast wrote has any.

For the same reason ``attribute_paths`` renames state and submodules in generated modules: a Python keyword, a quote or
a line break would not be a valid name in the source. Users may have such names: ``class`` becomes ``class_``, and
``a"b`` becomes ``a_x22_b``.
"""

import hashlib
import math
import operator
import re
from collections.abc import Callable, Iterable
from keyword import iskeyword
from typing import Any

import torch
from torch.amp.autocast_mode import _enter_autocast, _exit_autocast

from precast.artifact.schema import damaged
from precast.errors import ArtifactError, ExportError
from precast.export.verifier import ALLOWED_HIGHER_ORDER
from precast.ops.operators_in_files import is_of_numbers_alone, may_be_called_by_files

_OPERATOR = re.compile(r"([A-Za-z_]\w*)\.([A-Za-z_]\w*)\.([A-Za-z_]\w*)")
_PLAIN_NAMES = {
    operator: "add sub mul floordiv truediv mod pow neg pos abs getitem and_ or_ xor not_ eq ne lt le gt ge "
    "lshift rshift",
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


def target_from_json(name: str, *, may_write: bool = False) -> Callable[..., Any]:
    """The operator or function of this name; with ``may_write``, possibly one that writes to its input."""
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
        raise damaged(f"the program calls {name[:100]!r}", "that is not the name of an operator")
    namespace, packet, overload = match.groups()
    written = packet.removesuffix("_") if may_write and namespace == "aten" else packet
    if not may_be_called_by_files(namespace, packet) and not may_be_called_by_files(namespace, written):
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
        raise damaged(f"the program calls {name!r}", "that is not an operator")
    if is_of_numbers_alone(operator_found):
        raise damaged(f"the program calls {name!r}", "it might reach beyond the program's own tensors")
    return operator_found


_UNSAFE = re.compile(r'["\\\x00-\x1f\x7f\ud800-\udfff]')
_LONGEST = 1000
_KEPT = 900


def writable_path(path: str) -> str:
    """The name as stored in a file: shortened, and without the characters that readers refuse."""
    safe = _UNSAFE.sub(lambda found: f"_x{ord(found[0]):02x}_", path)
    if len(safe) <= _LONGEST:
        return safe
    return f"{safe[:_KEPT]}_{hashlib.sha256(safe.encode()).hexdigest()[:16]}"


def attribute_paths(paths: Iterable[str]) -> Callable[[str], str] | None:
    """How to rename these paths, and those below them, so that each is a valid attribute; None if all are."""
    taken = {atom for path in paths for atom in path.split(".")}
    renamed: dict[str, str] = {}
    for atom in sorted(taken):
        safe = _UNSAFE.sub(lambda found: f"_x{ord(found[0]):02x}_", atom)
        if iskeyword(safe):
            safe += "_"
        while safe != atom and (safe in taken or safe in renamed.values()):
            safe += "_"
        if safe != atom:
            renamed[atom] = safe
    if not renamed:
        return None
    return lambda path: ".".join(renamed.get(atom, atom) for atom in path.split("."))


_SAFE = re.compile(r"""[^"\\\x00-\x1f\x7f]{0,4096}""")


def checked_path(path: Any) -> str:
    """The name, if it is valid."""
    if not isinstance(path, str) or not _SAFE.fullmatch(path):
        raise damaged(
            f"{str(path)[:80]!r} cannot name state or a submodule",
            "it holds double quotes, backslashes or control characters",
        )
    return path


def checked_optional_path(path: Any) -> str | None:
    """The name, or None."""
    return None if path is None else checked_path(path)


def writable_optional_path(path: str | None) -> str | None:
    """The name as stored in a file, or None."""
    return None if path is None else writable_path(path)
