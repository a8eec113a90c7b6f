"""Accumulators as Triton expressions: initial value, combination, and reduction of lanes."""

from __future__ import annotations

import torch

from precast.artifact.dtypes import DTYPES
from precast.graph.tensor_spec import TORCH_DTYPES
from precast.native.loops.scalars import Accumulator
from precast.native.targets.cuda.codegen.types import TRITON_TYPES


def neutral(accumulator: Accumulator) -> float | int | bool:
    """The neutral element of the reduction."""
    kind, dtype = accumulator.kind, accumulator.dtype
    if kind in ("any", "all"):
        return kind == "all"
    if kind in ("sum", "prod"):
        return 0 if kind == "sum" else 1
    if DTYPES[dtype].is_floating:
        return float("-inf") if kind == "max" else float("inf")
    if dtype == "bool":
        return kind == "min"
    limits = torch.iinfo(TORCH_DTYPES[dtype])
    return limits.min if kind == "max" else limits.max


def combined(accumulator: Accumulator, total: str, value: str) -> str:
    """The total combined with another value, or block of values."""
    is_bool = accumulator.dtype == "bool"
    match accumulator.kind:
        case "sum":
            return f"{total} + {value}"
        case "prod":
            return f"{total} * {value}"
        case "max" | "any" if is_bool:
            return f"{total} | {value}"
        case "min" | "all" if is_bool:
            return f"{total} & {value}"
        case kind:
            return f"{kind}imum({total}, {value})" if _may_be_nan(accumulator) else f"tl.{kind}imum({total}, {value})"


def reduced(accumulator: Accumulator, value: str, axis: int) -> str:
    """Reduce each row of a block to one value."""
    text = _reduced(accumulator, value, axis)
    # Triton widens narrow integers in reductions.
    return f"{text}.to({TRITON_TYPES[accumulator.dtype]})" if accumulator.dtype in ("i16", "i8", "u8") else text


def _reduced(accumulator: Accumulator, value: str, axis: int) -> str:
    match accumulator.kind:
        case "sum":
            return f"tl.sum({value}, {axis})"
        case "prod":
            return f"tl.reduce({value}, {axis}, multiply)"
        case "max" | "any" if accumulator.dtype == "bool":
            return f"(tl.max({value}.to(tl.int32), {axis}) != 0)"
        case "min" | "all" if accumulator.dtype == "bool":
            return f"(tl.min({value}.to(tl.int32), {axis}) != 0)"
        case kind:
            return (
                f"tl.reduce({value}, {axis}, {kind}imum)" if _may_be_nan(accumulator) else f"tl.{kind}({value}, {axis})"
            )


def _may_be_nan(accumulator: Accumulator) -> bool:
    return DTYPES[accumulator.dtype].is_floating
