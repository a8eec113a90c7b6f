"""Reads the guards of PyTorch's programs: texts such as ``L['x'].size()[0] % 2 == 0``."""

import ast
from collections.abc import Sequence
from typing import Any

from torch.utils import _pytree as pytree

from precast.artifact.schema import Json, brief, damaged
from precast.export.torch_files.texts import expression_from_text


def guard_conditions(
    texts: Sequence[Any], names: Sequence[str], in_tree: pytree.TreeSpec, values: Sequence[Json]
) -> list[Json]:
    """The conditions over the symbols of the program.

    ``names`` are those of the arguments, ``values`` the leaves of a call as files describe them.
    """
    found = _Inputs(names, in_tree, values)
    return [{"condition": expression_from_text(text, found.size), "at": None} for text in texts]


class _Inputs:
    """Looks up sizes of arguments that guards refer to by name."""

    def __init__(self, names: Sequence[str], in_tree: pytree.TreeSpec, values: Sequence[Json]) -> None:
        args, kwargs = pytree.tree_unflatten(list(values), in_tree)
        self._arguments: dict[str, Any] = dict(zip(names, (*args, *kwargs.values()), strict=True))
        # Guards number the elements of ``*args``, which are separate arguments here.
        for name in names:
            stem, _, number = name.rpartition("_")
            if number.isdigit() and stem not in names:
                self._arguments.setdefault(stem, []).append(self._arguments[name])

    def size(self, node: ast.expr) -> Json:
        match node:
            case ast.Subscript(
                value=ast.Call(func=ast.Attribute(value=tensor, attr=("size" | "stride") as what), args=[]),
                slice=ast.Constant(value=int() as dimension),
            ):
                described = self._value(tensor)
                sizes = described[1 if what == "size" else 2] if _is_tensor(described) else None
                if isinstance(sizes, list) and 0 <= dimension < len(sizes):
                    return sizes[dimension]  # type: ignore[no-any-return]
            case ast.Call(func=ast.Attribute(attr="storage_offset"), args=[]):
                return 0
            case ast.Subscript() | ast.Name():
                match self._value(node):
                    case {"SymInt": number}:
                        return number  # type: ignore[no-any-return]
                    case {"constant": int() as constant}:
                        return constant
        raise _unreadable(node)

    def _value(self, node: ast.expr) -> Any:
        """The value of an expression such as ``L['d']['a'][0]``."""
        match node:
            case ast.Subscript(value=ast.Name(id="L"), slice=ast.Constant(value=str() as name)):
                if name in self._arguments:
                    return self._arguments[name]
            case ast.Subscript(value=inner, slice=ast.Constant(value=key)):
                held = self._value(inner)
                if isinstance(held, dict) and key in held:
                    return held[key]
                if isinstance(held, list | tuple) and isinstance(key, int) and 0 <= key < len(held):
                    return held[key]
            case ast.Attribute(value=inner, attr=name) if not name.startswith("_"):
                return getattr(self._value(inner), name)
        raise _unreadable(node)


def _is_tensor(described: object) -> bool:
    return isinstance(described, list) and len(described) >= 3 and isinstance(described[0], str)


def _unreadable(node: ast.expr) -> Exception:
    return damaged("a condition on the inputs cannot be read", f"it asks for {brief(ast.unparse(node))}")
