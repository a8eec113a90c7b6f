"""Scalars as C++ expressions: each distinct one once; those with a name or several readers as local constants.

Before: ``gelu = mul(add(mm[i0, i1], b[i1]), …)``
After::

    const float add = mm[i0 * 6 + i1] + b[i1];
    const float gelu = add * …;
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from precast.native.loops.buffers import Buffer
from precast.native.loops.index import Computed, Index
from precast.native.loops.scalars import (
    Accumulated,
    Accumulator,
    Apply,
    Cast,
    Constant,
    IndexValue,
    Load,
    Named,
    Scalar,
    operands_of,
    walk,
)
from precast.native.targets.cpu.codegen.types import CPP_TYPES, ROUNDING, Namer, closes_at_end, index_text, literal

_INFIX = {
    "add": "+", "sub": "-", "mul": "*", "div": "/", "bitwise_and": "&", "bitwise_or": "|", "bitwise_xor": "^",
    "eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">=",
    "logical_and": "&", "logical_or": "|", "logical_xor": "!=",
}  # fmt: skip
_FUNCTIONS = {
    "atan2": "precast::library::atan2", "copysign": "precast::library::copysign", "hypot": "precast::library::hypot",
    "nextafter": "precast::library::nextafter",
    "bitwise_left_shift": "precast::left_shift", "bitwise_right_shift": "precast::right_shift",
}  # fmt: skip
# C++ promotes small integers to int: the result must be converted back.
_PROMOTED = frozenset({"i16", "i8", "u8", "bool"})


class Expressions:
    """Writes the scalars of one kernel; keeps track, by scope, of existing local constants."""

    def __init__(self, namer: Namer, pointers: dict[Buffer, str], accumulators: dict[Accumulator, str]):
        self.namer, self.pointers, self.accumulators = namer, pointers, accumulators
        self.tiles: dict[tuple[Buffer, Index], str] = {}
        """Elements already copied to local memory, by buffer and place."""

    def write(self, roots: Sequence[Scalar]) -> tuple[list[str], list[str]]:
        """Declarations of local constants, and the text of each root, for one loop body."""
        numbers, readers, names = self._number(roots)
        texts: dict[int, str] = {}
        lines: list[str] = []
        for value in walk(*roots):
            number = numbers[id(value)]
            if number in texts:
                continue
            text = self._text(value, lambda operand: texts[numbers[id(operand)]])
            is_leaf = isinstance(value, Constant | Accumulated) or _is_number(value)
            if not is_leaf and not text.isidentifier() and (number in names or readers[number] > 1):
                name = self.namer.fresh(names.get(number, f"t{len(lines)}"))
                lines.append(f"const {CPP_TYPES[value.dtype]} {name} = {_unwrapped(text)};")
                text = name
            texts[number] = text
        return lines, [_unwrapped(texts[numbers[id(root)]]) for root in roots]

    def _number(self, roots: Sequence[Scalar]) -> tuple[dict[int, int], Counter[int], dict[int, str]]:
        """Value numbering: equal scalars get equal numbers; counts the readers of each number, and collects names."""
        numbers: dict[int, int] = {}
        known: dict[object, int] = {}
        readers: Counter[int] = Counter()
        names: dict[int, str] = {}
        for value in walk(*roots):
            if isinstance(value, Named):
                numbers[id(value)] = numbers[id(value.value)]
                names.setdefault(numbers[id(value)], value.name)
                continue
            operands = tuple(numbers[id(operand)] for operand in operands_of(value))
            key = _key(value, operands, lambda operand: f"#{numbers[id(operand)]}")
            if key not in known:
                known[key] = len(known)
                readers.update(operands)
            numbers[id(value)] = known[key]
        readers.update(numbers[id(root)] for root in roots)
        return numbers, readers, names

    def _text(self, value: Scalar, text_of: Callable[[Scalar], str]) -> str:
        match value:
            case Load(buffer, indices, guard):
                offset = buffer.offset(indices)
                element = self.tiles.get((buffer, offset)) or f"{self.pointers[buffer]}[{_place(offset, text_of)}]"
                element = f"({element} != 0)" if buffer.dtype == "bool" else element
                element = f"precast::cast<float>({element})" if buffer.dtype in ROUNDING else element
                return element if guard is None else f"({text_of(guard)} ? {element} : {CPP_TYPES[value.dtype]}(0))"
            case Constant(number, dtype):
                return literal(number, dtype)
            case IndexValue(index, dtype) if index.constant is not None:
                return literal(index.constant, dtype)
            case IndexValue(index, dtype):
                text = f"static_cast<{CPP_TYPES[dtype]}>({_place(index, text_of)})"
                return f"{ROUNDING[dtype]}({text})" if dtype in ROUNDING else text
            case Apply(operation, arguments, dtype):
                return _operation_text(operation, list(map(text_of, arguments)), dtype)
            case Cast(inner, "f32") if inner.dtype in ROUNDING:
                return text_of(inner)
            case Cast(inner, "f16" | "bf16" as dtype):
                text = _unwrapped(text_of(inner))
                return f"{ROUNDING[dtype]}({text if inner.dtype == 'f32' else f'precast::cast<float>({text})'})"
            case Cast(inner, dtype):
                return f"precast::cast<{CPP_TYPES[dtype]}>({_unwrapped(text_of(inner))})"
            case Accumulated(accumulator):
                return self.accumulators[accumulator]
            case Named(_, inner):
                return text_of(inner)


def _is_number(value: Scalar) -> bool:
    return isinstance(value, IndexValue) and value.index.constant is not None


def _place(index: Index, text_of: Callable[[Scalar], str]) -> str:
    return index_text(index, {each: subscript_text(each, text_of(each.value)) for each in index.computed})


def subscript_text(subscript: Computed, text: str) -> str:
    """A computed subscript. A former bool is widened explicitly: GCC 12 gathers at -1 instead of 1 otherwise."""
    from_bool = any(isinstance(each, Cast) and each.value.dtype == "bool" for each in walk(subscript.value))
    return f"precast::opaque({_unwrapped(text)})" if from_bool else text


def _operation_text(operation: str, operands: list[str], dtype: str) -> str:
    if operation in _INFIX:
        text = f"({operands[0]} {_INFIX[operation]} {operands[1]})"
    elif operation == "neg":
        # Two minus signs without a space would be a decrement.
        text = f"(- {operands[0]})" if operands[0].startswith("-") else f"(-{operands[0]})"
    elif operation == "logical_not":
        return f"(!{operands[0]})"
    elif operation == "where":
        return f"({operands[0]} ? {operands[1]} : {operands[2]})"
    else:
        function = _FUNCTIONS.get(operation, f"precast::{operation}")
        return f"{function}({', '.join(map(_unwrapped, operands))})"
    return f"{CPP_TYPES[dtype]}{text}" if dtype in _PROMOTED else text


def _key(value: Scalar, operands: tuple[int, ...], number_of: Callable[[Scalar], str]) -> object:
    match value:
        case Load(buffer, indices, _):
            return "load", buffer, _place(buffer.offset(indices), number_of), operands
        case Constant(number, dtype):
            return "constant", repr(number), dtype
        case IndexValue(index, dtype):
            return "index", _place(index, number_of), dtype
        case Apply(operation, _, dtype):
            return operation, operands, dtype
        case Cast(_, dtype):
            return "cast", operands, dtype
        case Accumulated(accumulator):
            return "accumulated", id(accumulator)
    raise AssertionError(f"no key for {type(value).__name__}")


def _unwrapped(text: str) -> str:
    """The text without one pair of brackets around the whole."""
    return text[1:-1] if text.startswith("(") and closes_at_end(text, 0) else text
