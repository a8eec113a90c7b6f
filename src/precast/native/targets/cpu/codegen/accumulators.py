"""Codegen of accumulators: totals, and the partial sums of a vector loop that are added to a total.

Before: ``double total;  for i:  total += double(x[i])``
After::

    double total = 0.0;
    for (i_block …) {
        float total_part = 0.0f;
        for (i of the block)  total_part += x[i];    // as a vector
        total += double(total_part);
    }

Single precision processes twice as many elements at a time, and a block is short enough to be as precise as eager.
The maximum of floats is a plain comparison, which ignores NaN, with a flag that records NaN.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from precast.native.loops.program import Accumulate, Loop, Statement
from precast.native.loops.scalars import Accumulator, Cast, Scalar
from precast.native.targets.cpu.codegen.types import CPP_TYPES, literal

BLOCK = 1024
"""How many elements the lanes of a vector accumulate in single precision."""
LANE_BLOCK = 32
"""How many elements are accumulated in single precision in sequence."""

REDUCTIONS = {"sum": "+", "prod": "*", "max": "max", "min": "min", "any": "||", "all": "&&"}


@dataclass(frozen=True)
class Parts:
    """A loop with partial accumulators, and their totals: total → part."""

    loop: Loop
    of: dict[Accumulator, Accumulator]


def with_parts(loop: Loop, *, extremes: bool) -> Parts:
    """Give `loop` partial accumulators for single-precision sums and, with `extremes`, for float maxima and minima."""
    parts = {each: _part(each) for each in loop.accumulators if _has_part(each, loop.body, extremes)}
    body = tuple(_collecting(statement, parts) for statement in loop.body)
    return Parts(
        replace(loop, body=body, accumulators=tuple(parts.get(each, each) for each in loop.accumulators)), parts
    )


def _part(total: Accumulator) -> Accumulator:
    return Accumulator(f"{total.name}_part", total.kind, "f32" if total.kind == "sum" else total.dtype)


def _has_part(total: Accumulator, body: tuple[Statement, ...], extremes: bool) -> bool:
    if total.kind in ("max", "min"):
        return extremes and has_flag(total)
    values = [each.value for each in body if isinstance(each, Accumulate) and each.accumulator is total]
    return total.kind == "sum" and total.dtype == "f64" and bool(values) and all(map(_is_widened, values))


def _is_widened(value: Scalar) -> bool:
    return isinstance(value, Cast) and not value.is_asked and value.dtype == "f64" and value.value.dtype == "f32"


def _collecting(statement: Statement, parts: dict[Accumulator, Accumulator]) -> Statement:
    if not isinstance(statement, Accumulate) or statement.accumulator not in parts:
        return statement
    value = statement.value
    if statement.accumulator.kind == "sum":
        assert isinstance(value, Cast)
        value = value.value
    return Accumulate(parts[statement.accumulator], value)


def has_flag(accumulator: Accumulator) -> bool:
    """Whether a vector loop needs a flag for NaN, which wins over all floats."""
    return accumulator.kind in ("max", "min") and accumulator.dtype in ("f32", "f64")


def flag_of(name: str) -> str:
    return f"{name}_has_nan"


def neutral(accumulator: Accumulator) -> str:
    dtype, spelling = accumulator.dtype, CPP_TYPES[accumulator.dtype]
    if accumulator.kind in ("max", "min"):
        if dtype in ("f32", "f64"):
            return f"{'-' if accumulator.kind == 'max' else ''}precast::infinity<{spelling}>"
        return f"std::numeric_limits<{spelling}>::{'lowest' if accumulator.kind == 'max' else 'max'}()"
    return literal({"sum": 0, "prod": 1, "any": False, "all": True}[accumulator.kind], dtype)


def combined(kind: str, name: str, value: str) -> str:
    """The statement that combines `value` into `name`."""
    match kind:
        case "max" | "min":
            return f"{name} = precast::{kind}imum({name}, {value});"
        case "any" | "all":
            return f"{name} = {name} {REDUCTIONS[kind]} {value};"
    return f"{name} {REDUCTIONS[kind]}= {value};"


def combined_in_vector(accumulator: Accumulator, name: str, value: str) -> list[str]:
    """As `combined`, for a vector loop; sets the NaN flag of a float."""
    if accumulator.kind not in ("max", "min"):
        return [combined(accumulator.kind, name, value)]
    comparison = ">" if accumulator.kind == "max" else "<"
    lines = [f"{name} = {value} {comparison} {name} ? {value} : {name};"]
    return lines + ([f"{flag_of(name)} |= {value} != {value};"] if has_flag(accumulator) else [])


def declaration(accumulator: Accumulator, name: str, *, is_vector: bool = False) -> list[str]:
    lines = [f"{CPP_TYPES[accumulator.dtype]} {name} = {neutral(accumulator)};"]
    return lines + ([f"int32_t {flag_of(name)} = 0;"] if is_vector and has_flag(accumulator) else [])


def clause(accumulator: Accumulator, name: str) -> str:
    """The OpenMP reduction clause of an accumulator of a vector loop."""
    flag = f" reduction(| : {flag_of(name)})" if has_flag(accumulator) else ""
    return f" reduction({REDUCTIONS[accumulator.kind]} : {name}){flag}"


def joined(total: Accumulator, name: str, part: Accumulator, part_name: str) -> str:
    """The statement that combines a part into its total."""
    value = part_name
    if has_flag(part):
        value = f"{flag_of(part_name)} ? precast::not_a_number<{CPP_TYPES[part.dtype]}> : {part_name}"
    elif part.dtype != total.dtype:
        value = f"precast::cast<{CPP_TYPES[total.dtype]}>({part_name})"
    return combined(total.kind, name, value)
