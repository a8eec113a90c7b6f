"""One call in its original signature: arguments are checked and flattened, results unflattened."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from precast.artifact.calls import (
    CallDescription,
    ConstantLeaf,
    NumberResult,
    OutputResult,
    Result,
    SizeLeaf,
    TensorLeaf,
    argument_path,
    check_arguments,
    other_constant,
    other_sizes,
    other_structure,
    other_tensor,
    place_arguments,
)
from precast.artifact.constants import Named, is_same_constant
from precast.artifact.dtypes import DTYPES
from precast.artifact.expressions import expression_text, holds, solve, symbols_of, whole_number
from precast.artifact.schema import Json, damaged
from precast.errors import InputTypeError, InputValueError
from precast.runtime.tensors import Tensor, as_host_array, as_tensor, is_bfloat16, is_on_gpu, is_torch_tensor, type_name
from precast.runtime.trees import TreeMismatchError, flatten, tree_text, unflatten, value_text

# What classes raise when they are restored from unexpected parts, and what sizes without a value raise.
_NONSENSE = (ValueError, TypeError, LookupError, AttributeError, RuntimeError, ArithmeticError, AssertionError)
_NAMES = {short: each.name for short, each in DTYPES.items()}
Sizes = dict[str, int]


def checked_leaves(
    call: CallDescription, args: Sequence[Any], kwargs: Mapping[str, Any], *, on_gpu: bool = False
) -> tuple[list[tuple[str, Any]], Sizes]:
    """Check a call; returns its leaves with their paths, and the sizes read from them."""
    positional, named = call.in_tree.children
    names = call.argument_names[: len(positional.children)]
    arguments = place_arguments(names, named.keys, tuple(args), dict(kwargs))
    check_arguments(names, len(positional.children), named.keys, *arguments)
    try:
        leaves = [
            leaf
            for number, (tree, value) in enumerate(zip(positional.children, arguments[0], strict=True))
            for leaf in flatten(tree, value, argument_path(names, True, number))
        ]
        for key, tree in zip(named.keys, named.children, strict=True):
            leaves += flatten(tree, arguments[1][key], key)
    except TreeMismatchError:
        raise other_structure(tree_text(call.in_tree), value_text(arguments)) from None
    found: list[tuple[str, Any]] = []
    for expected, (path, value) in zip(call.leaves, leaves, strict=True):
        if isinstance(expected, ConstantLeaf):
            _check_constant(expected.value, path, value)
            found.append((path, value))
        elif isinstance(expected, SizeLeaf):
            found.append((path, _checked_number(path, value)))
        else:
            found.append((path, _checked_tensor(call, expected, path, value, on_gpu)))
    return found, _checked_sizes(call, found)


def result_of(call: CallDescription, outputs: Sequence[Any], sizes: Sizes) -> Any:
    """The results in their original structure."""
    try:
        return unflatten(call.out_tree, iter([_result(each, outputs, sizes) for each in call.results]))
    except _NONSENSE as problem:
        raise damaged("the file does not describe valid results", f"{type(problem).__name__}: {problem}") from problem


def write_back(call: CallDescription, leaves: Sequence[tuple[str, Any]], outputs: Sequence[Any]) -> None:
    """Copy the program's updates to the caller's tensors."""
    for output, leaf in call.updates:
        path, target = leaves[leaf]
        if isinstance(target, np.ndarray):
            if not target.flags.writeable:
                raise InputValueError(
                    f"{path} cannot be written to.",
                    why="the program changes this argument in place",
                    fix="Pass an array that owns its memory, for example a copy.",
                )
            new = as_host_array(outputs[output])
            np.copyto(*((target.view(np.uint16), new.view(np.uint16)) if is_bfloat16(new) else (target, new)))
        elif is_torch_tensor(target):
            target.detach().copy_(outputs[output])
        else:
            target[...] = outputs[output]


def _result(result: Result, outputs: Sequence[Any], sizes: Sizes) -> Any:
    match result:
        case OutputResult(number):
            return outputs[number]
        case NumberResult(number):
            return outputs[number].item()
        case SizeLeaf(expression):
            return whole_number(expression, sizes)
        case ConstantLeaf(value):
            return value


def _check_constant(expected: object, path: str, value: Any) -> None:
    # Without torch, its dtypes and devices are represented by their names.
    if not is_same_constant(expected, value) and not (isinstance(expected, Named) and value == expected.name):
        raise other_constant(path, value, expected)


def _checked_number(path: str, value: Any) -> int:
    if isinstance(value, int | np.integer) and not isinstance(value, bool):
        return int(value)
    raise InputValueError(
        f"{path} is {value!r}, but the program was captured with a whole number.",
        why="it is a size in the program",
        fix="Pass an int.",
    )


def _checked_tensor(call: CallDescription, expected: TensorLeaf, path: str, value: Any, on_gpu: bool) -> Tensor:
    try:
        tensor: Any = None
        if on_gpu and is_on_gpu(value) and not is_torch_tensor(value):
            tensor = value
        elif not isinstance(value, int):
            tensor = as_tensor(value, name=path)
    except InputTypeError:
        tensor = None
    if tensor is None:
        came, needed = f"is {_short(value)}", f"a tensor, {_text(call, expected)}"
    elif (dtype := type_name(tensor.dtype)) not in (_NAMES.get(expected.dtype), expected.dtype) and not (
        expected.dtype == "bf16" and is_bfloat16(tensor)
    ):
        came, needed = f"is {dtype}", _NAMES.get(expected.dtype, expected.dtype)
    elif len(tensor.shape) != len(expected.shape):
        came, needed = f"has {len(tensor.shape)} dimensions", f"{len(expected.shape)}: {_text(call, expected)}"
    elif is_torch_tensor(tensor) and tensor.device.type not in ("cpu", *(("cuda",) if on_gpu else ())):
        came, needed = f"is on {tensor.device}", "cpu"
    else:
        return tensor  # type: ignore[no-any-return]
    raise other_tensor(path, came, needed)


def _text(call: CallDescription, expected: TensorLeaf) -> str:
    return f"{expected.dtype}[{', '.join(expression_text(size, call.size_names) for size in expected.shape)}]"


def _short(value: Any) -> str:
    if is_torch_tensor(value):
        return f"a tensor with the layout {'nested' if value.is_nested else value.layout}"
    text = repr(value)
    return text if len(text) <= 80 else f"a {type(value).__name__}"


def _checked_sizes(call: CallDescription, leaves: Sequence[tuple[str, Any]]) -> Sizes:
    """The value of every symbol; an error lists everything that contradicts."""
    promised = [
        (f"{path}.shape[{dimension}]", size, value.shape[dimension])
        for expected, (path, value) in zip(call.leaves, leaves, strict=True)
        if isinstance(expected, TensorLeaf)
        for dimension, size in enumerate(expected.shape)
    ]
    promised += [
        (path, expected.expression, value)
        for expected, (path, value) in zip(call.leaves, leaves, strict=True)
        if isinstance(expected, SizeLeaf)
    ]
    sizes: Sizes = {}
    for _, size, came in promised:
        if isinstance(size, str):
            sizes.setdefault(size, came)
    wrong = [problem for each in promised if (problem := _misfit(call, *each, sizes))]
    wrong += [
        f"{symbol.seen_at} is {sizes[symbol.symbol]}, outside of {symbol.name} in {symbol.range_text}"
        for symbol in call.symbols
        if symbol.symbol in sizes and not symbol.allows(sizes[symbol.symbol])
    ]
    wrong = wrong or list(_failing_guards(call, sizes))
    if wrong:
        raise other_sizes(wrong)
    return sizes


def _misfit(call: CallDescription, path: str, size: Json, came: int, sizes: Sizes) -> str | None:
    """What is wrong with one size, or None; a size that is read here first is recorded."""
    if isinstance(size, int):
        return None if size == came else f"{path} is {came}, but the program was captured with {size}"
    unknown = {symbol for symbol in symbols_of(size) if symbol not in sizes}
    if len(unknown) == 1:
        (symbol,) = unknown
        solved = solve(size, symbol, came, sizes)
        if solved is not None:
            sizes[symbol] = solved
            return None
    try:
        wanted = None if unknown else whole_number(size, sizes)
    except ArithmeticError:
        wanted = None
    if wanted is None:
        return f"{path} is {came}, but it must be {expression_text(size, call.size_names)}"
    return None if wanted == came else f"{path} is {came}, but the other sizes make it {wanted}"


def _failing_guards(call: CallDescription, sizes: Sizes) -> list[str]:
    failing = [
        guard
        for guard in call.guards
        if all(symbol in sizes for symbol in symbols_of(guard.condition)) and not holds(guard.condition, sizes)
    ]
    values = ", ".join(f"{symbol.name} = {sizes[symbol.symbol]}" for symbol in call.symbols if symbol.symbol in sizes)
    return [
        f"{expression_text(guard.condition, call.size_names)} does not hold for {values}"
        + (f" (asked at {guard.at})" if guard.at else "")
        for guard in failing
    ]
