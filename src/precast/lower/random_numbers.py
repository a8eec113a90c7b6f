"""Formulas for random scalars: bits from a stream, and what distributions make of them."""

from __future__ import annotations

import math
from dataclasses import dataclass

from precast.ir.loops.buffers import Buffer
from precast.ir.loops.index import constant
from precast.ir.loops.scalars import Constant, IndexValue, Load, Scalar, apply, as_scalar, cast
from precast.lower.builder import Indices, math_dtype

_DIGITS = {"f64": 53, "f32": 24, "f16": 11, "bf16": 8}
"""How many random bits a number below 1 has in each type: as many as it can hold without rounding up to 1."""
_SINE_TERMS = {"f64": 11, "f32": 6}


@dataclass(frozen=True)
class Stream:
    """The numbers of one random operator: 64 bits for each element of `shape`, whatever its layout in memory."""

    state: Buffer
    shape: Indices

    def bits(self, at: Indices, *, draw: int = 0, draws: int = 1) -> Scalar:
        """The bits of the element at `at`; operators that need more take several `draws`."""
        flat = constant(0)
        for position, size in zip(at, self.shape, strict=True):
            flat = flat * size + position
        seed, number = (Load(self.state, (constant(each),)) for each in (0, 1))
        return apply("random_bits", seed, number, IndexValue(flat * draws + draw, "i64"))

    def uniform(self, at: Indices, dtype: str) -> Scalar:
        """Evenly spread over [0, 1), in the type that `dtype` is computed in."""
        return _fraction(self.bits(at), _DIGITS[dtype], math_dtype(dtype))

    def inner_uniform(self, at: Indices, dtype: str) -> Scalar:
        """Evenly spread over (0, 1): never an end, so that its logarithm is finite and not 0."""
        dtype = math_dtype(dtype)
        digits = _DIGITS[dtype] - 1
        return _fraction(self.bits(at), digits, dtype) + 0.5 ** (digits + 1)

    def normal(self, at: Indices, dtype: str) -> Scalar:
        """Mean 0, deviation 1: a point of the plane, by its distance from the middle and its direction."""
        dtype = math_dtype(dtype)
        if dtype == "f64":
            near = _fraction(self.bits(at, draws=2), 52, dtype) + 0.5**53
            turn = _fraction(self.bits(at, draw=1, draws=2), 53, dtype) - 0.5
        else:
            bits = self.bits(at)
            # More digits than a number below 1 has: they make the rare far points.
            near = _fraction(bits, 31, dtype) + 0.5**32
            turn = cast(cast(apply("bitwise_right_shift", bits, Constant(32, "i64")), "i32"), dtype) * 0.5**32
        return apply("sqrt", apply("log", near) * -2.0) * _cosine_of_turn(turn)

    def is_below(self, at: Indices, probability: float) -> Scalar:
        """True with `probability`."""
        share = round(probability * 2**31)
        if share == 2**31:
            return Constant(True, "bool")
        # In 32 bits, as wide as what is kept or dropped usually is: that makes better vectors.
        low = cast(apply("bitwise_and", self.bits(at), Constant(2**31 - 1, "i64")), "i32")
        return apply("lt", low, Constant(share, "i32"))

    def below(self, at: Indices, limit: Scalar) -> Scalar:
        """A whole number from 0 to below `limit`, which is an i64 of at least 1."""
        return apply("remainder", apply("bitwise_and", self.bits(at), Constant(2**63 - 1, "i64")), limit)


def _fraction(bits: Scalar, digits: int, dtype: str) -> Scalar:
    """The lowest `digits` bits as digits after the binary point."""
    low = apply("bitwise_and", bits, Constant(2**digits - 1, "i64"))
    # Vector units convert 32-bit numbers better than 64-bit ones.
    return cast(cast(low, "i32") if digits < 32 else low, dtype) * 0.5**digits


def _cosine_of_turn(turn: Scalar) -> Scalar:
    """``cos(2π turn)`` for turns from -1/2 to 1/2: the sine of an angle within a quarter turn, by its series."""
    angle = (0.25 - apply("abs", turn)) * (2 * math.pi)
    square = angle * angle
    terms = _SINE_TERMS[turn.dtype]
    total = as_scalar(_sine_coefficient(terms - 1), turn.dtype)
    for term in reversed(range(terms - 1)):
        total = total * square + _sine_coefficient(term)
    return total * angle


def _sine_coefficient(term: int) -> float:
    return (-1.0 if term % 2 else 1.0) / math.factorial(2 * term + 1)
