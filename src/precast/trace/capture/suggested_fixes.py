"""Parses the ``dynamic_shapes`` that an error's text suggests. Nothing in the text is executed.

Before: ``"… Suggested fixes:\\nbatch = Dim('batch', max=64)\\ndynamic_shapes = {'x': {0: batch}}"``
After:  ``{'x': {0: Dim('batch', max=64)}}``
"""

import ast
from collections.abc import Mapping
from typing import Any

from precast.errors import InputValueError
from precast.trace.capture.dims import DerivedDim, Dim, DimHint

_ARITHMETIC = (ast.Add, ast.Sub, ast.Mult)


def refine_dynamic_shapes_from_suggested_fixes(
    msg: str, dynamic_shapes: Mapping[str, Any] | tuple[Any, ...] | list[Any]
) -> Any:
    """Return the ``dynamic_shapes`` that an error message suggests, in the form (by name or position) of those given.

    >>> text = "Suggested fixes:\\nbatch = Dim('batch', max=64)\\ndynamic_shapes = {'x': {0: batch}}"
    >>> refine_dynamic_shapes_from_suggested_fixes(text, (None,))
    ({0: batch},)
    """
    lines = [line for line in msg.splitlines() if " = " in line and not line.startswith(" ")]
    names: dict[str, Any] = {}
    for line in lines:
        try:
            (statement,) = ast.parse(line).body
        except (SyntaxError, ValueError):
            continue
        if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
            names[statement.targets[0].id] = _read(statement.value, names)
    if not isinstance(found := names.get("dynamic_shapes"), dict):
        raise _unreadable("it has no line that begins with dynamic_shapes =")
    return found if isinstance(dynamic_shapes, Mapping) else type(dynamic_shapes)(found.values())


def _read(node: ast.expr, names: Mapping[str, Any]) -> Any:
    match node:
        case ast.Constant(value=int() | str() | None):
            return node.value
        case ast.Name(id=name) if name in names:
            return names[name]
        case ast.Dict(keys=keys, values=values):
            return {_read(k, names): _read(v, names) for k, v in zip(keys, values, strict=True) if k is not None}
        case ast.List(elts=elements):
            return [_read(element, names) for element in elements]
        case ast.Attribute(value=ast.Name(id="Dim"), attr="AUTO" | "DYNAMIC" | "STATIC"):
            return DimHint(node.attr)
        case ast.Call(func=function, args=arguments, keywords=keywords):
            options = {str(each.arg): _read(each.value, names) for each in keywords}
            return _called(function, [_read(each, names) for each in arguments], options)
        case ast.BinOp(left=left, op=operator, right=right) if isinstance(operator, _ARITHMETIC):
            return _combined(operator, _read(left, names), _read(right, names))
    raise _unreadable(f"it says {ast.unparse(node)}")


def _called(function: ast.expr, arguments: list[Any], options: dict[str, Any]) -> Any:
    match function:
        case ast.Name(id="Dim") if options.keys() <= {"min", "max"} and len(arguments) == 1:
            return Dim(arguments[0], **options)
        case ast.Attribute(value=ast.Name(id="Dim"), attr=kind) if options.keys() <= {"min", "max"} and not arguments:
            return DimHint(kind)(**options)
    raise _unreadable(f"it calls {ast.unparse(function)}")


def _combined(operator: ast.operator, left: Any, right: Any) -> Any:
    if not all(isinstance(side, (Dim, DerivedDim, int)) for side in (left, right)):
        raise _unreadable("it computes with something else than dims")
    if isinstance(operator, ast.Mult):
        return left * right
    return left + right if isinstance(operator, ast.Add) else left - right


def _unreadable(why: str) -> InputValueError:
    return InputValueError(
        "The text suggests no dynamic_shapes.",
        why=why,
        fix="Pass the whole text of the error that export() raised about dynamic_shapes: str(error).",
    )
