"""Random operators, which draw from a stream: see ``ops/own_operators.py``.

Each element is computed from the stream and its own position, so dropout fuses with its surroundings, and returns the
same numbers in any order, on any number of threads, and when recomputed in the backward.

Also the formulas for random scalars: bits from a stream, and distributions computed from them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

from precast.native.loops.buffers import Buffer
from precast.native.loops.index import Index, constant
from precast.native.loops.routines import SCAN_KINDS
from precast.native.loops.scalars import Constant, IndexValue, Load, Scalar, apply, as_scalar, cast
from precast.native.rules.builder import Builder, Indices, Operand, Result, element, is_floating, math_dtype
from precast.native.rules.conditions import refuse_any
from precast.native.rules.registry import drawing, lowering
from precast.ops.own_operators import random_stream

_DIGITS = {"f64": 53, "f32": 24, "f16": 11, "bf16": 8}
"""Random bits of a number below 1 in each type: as many as it can represent without rounding up to 1."""
_SINE_TERMS = {"f64": 11, "f32": 6}


@dataclass(frozen=True)
class Stream:
    """The random numbers of one operator: 64 bits for each element of `shape`, whatever its layout."""

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
        """Uniform over [0, 1), in the type that `dtype` is computed in."""
        return _fraction(self.bits(at), _DIGITS[dtype], math_dtype(dtype))

    def inner_uniform(self, at: Indices, dtype: str) -> Scalar:
        """Uniform over (0, 1): never an end point, so that its logarithm is finite and nonzero."""
        dtype = math_dtype(dtype)
        digits = _DIGITS[dtype] - 1
        return _fraction(self.bits(at), digits, dtype) + 0.5 ** (digits + 1)

    def normal(self, at: Indices, dtype: str) -> Scalar:
        """Standard normal, by Box-Muller: a point of the plane from its radius and angle."""
        dtype = math_dtype(dtype)
        if dtype == "f64":
            near = _fraction(self.bits(at, draws=2), 52, dtype) + 0.5**53
            turn = _fraction(self.bits(at, draw=1, draws=2), 53, dtype) - 0.5
        else:
            bits = self.bits(at)
            # More digits than a uniform number has: they produce the rare large values.
            near = _fraction(bits, 31, dtype) + 0.5**32
            turn = cast(cast(apply("bitwise_right_shift", bits, Constant(32, "i64")), "i32"), dtype) * 0.5**32
        return apply("sqrt", apply("log", near) * -2.0) * _cosine_of_turn(turn)

    def is_below(self, at: Indices, probability: float) -> Scalar:
        """True with `probability`."""
        share = round(probability * 2**31)
        if share == 2**31:
            return Constant(True, "bool")
        # In 32 bits, the usual width of what is kept or dropped: that vectorizes better.
        low = cast(apply("bitwise_and", self.bits(at), Constant(2**31 - 1, "i64")), "i32")
        return apply("lt", low, Constant(share, "i32"))

    def below(self, at: Indices, limit: Scalar) -> Scalar:
        """An integer from 0 to below `limit`, which is an i64 of at least 1."""
        return apply("remainder", apply("bitwise_and", self.bits(at), Constant(2**63 - 1, "i64")), limit)


def _fraction(bits: Scalar, digits: int, dtype: str) -> Scalar:
    """The lowest `digits` bits as a binary fraction."""
    low = apply("bitwise_and", bits, Constant(2**digits - 1, "i64"))
    # Vector units convert 32-bit numbers better than 64-bit ones.
    return cast(cast(low, "i32") if digits < 32 else low, dtype) * 0.5**digits


def _cosine_of_turn(turn: Scalar) -> Scalar:
    """``cos(2π turn)`` for turns from -1/2 to 1/2: the sine of an angle within a quarter turn, as a series."""
    angle = (0.25 - apply("abs", turn)) * (2 * math.pi)
    square = angle * angle
    terms = _SINE_TERMS[turn.dtype]
    total = as_scalar(_sine_coefficient(terms - 1), turn.dtype)
    for term in reversed(range(terms - 1)):
        total = total * square + _sine_coefficient(term)
    return total * angle


def _sine_coefficient(term: int) -> float:
    return (-1.0 if term % 2 else 1.0) / math.factorial(2 * term + 1)


aten = torch.ops.aten

_DTYPE_LIMITS = {"f64": 2**53, "f32": 2**24, "f16": 2**11, "bf16": 2**8, "i64": 2**63 - 1, "i32": 2**31 - 1,
                 "i16": 2**15 - 1, "i8": 2**7 - 1, "u8": 2**8 - 1, "bool": 1}  # fmt: skip
"""The largest number of each type below which all integers are representable."""


@lowering(random_stream)
def stream_of(builder: Builder, seed: Buffer, number: int) -> Buffer:
    # The first element is the seed, the second the number. Written without a select, which GCC does not vectorize.
    return builder.define(
        lambda at: Load(seed, ()) * IndexValue(at[0] * -1 + 1, "i64") + IndexValue(at[0] * number, "i64")
    )


def _define(builder: Builder, state: Buffer, formula: Callable[[Stream, Indices], Scalar]) -> Buffer:
    stream = Stream(state, builder.result.shape)
    return builder.define(lambda at: formula(stream, at))


def _dtype(builder: Builder) -> str:
    """The type in which a real distribution is computed."""
    dtype = builder.results[0].dtype
    return dtype if is_floating(dtype) else "f32"


@drawing(aten.rand.default, aten.rand_like.default)
def rand(builder: Builder, state: Buffer, *_: object, **__: object) -> Buffer:
    return _define(builder, state, lambda stream, at: stream.uniform(at, _dtype(builder)))


@drawing(aten.uniform.default)
def uniform(builder: Builder, state: Buffer, _: Buffer, low: float = 0, high: float = 1, **__: object) -> Buffer:
    return _define(builder, state, lambda stream, at: stream.uniform(at, _dtype(builder)) * (high - low) + low)


@drawing(aten.randn.default, aten.randn_like.default)
def randn(builder: Builder, state: Buffer, *_: object, **__: object) -> Buffer:
    return _define(builder, state, lambda stream, at: stream.normal(at, _dtype(builder)))


@drawing(aten.normal.Tensor_float, aten.normal.float_Tensor, aten.normal.Tensor_Tensor, aten.normal.float_float)
def normal(builder: Builder, state: Buffer, mean: Operand, std: Operand = 1.0, *_: object, **__: object) -> Buffer:
    if isinstance(std, Buffer):
        refuse_any(builder, std, lambda value: apply("lt", value, as_scalar(0, value.dtype)),
                "normal expects all elements of std >= 0.0")  # fmt: skip
    dtype = math_dtype(_dtype(builder))

    def formula(stream: Stream, at: Indices) -> Scalar:
        return stream.normal(at, dtype) * element(std, at, dtype) + element(mean, at, dtype)

    return _define(builder, state, formula)


@drawing(aten.normal_functional.default)
def normal_functional(
    builder: Builder, state: Buffer, _: Buffer, mean: float = 0, std: float = 1, **__: object
) -> Buffer:
    return normal(builder, state, mean, std)


@drawing(aten.log_normal.default)
def log_normal(builder: Builder, state: Buffer, _: Buffer, mean: float = 1, std: float = 2, **__: object) -> Buffer:
    return _define(builder, state, lambda stream, at: apply("exp", stream.normal(at, _dtype(builder)) * std + mean))


@drawing(aten.exponential.default)
def exponential(builder: Builder, state: Buffer, _: Buffer, lambd: float = 1, **__: object) -> Buffer:
    return _define(builder, state, lambda stream, at: _exponential(stream, at, _dtype(builder)) / lambd)


def _exponential(stream: Stream, at: Indices, dtype: str) -> Scalar:
    return -apply("log", stream.inner_uniform(at, dtype))


@drawing(aten.geometric.default)
def geometric(builder: Builder, state: Buffer, _: Buffer, p: float, **__: object) -> Buffer:
    """The number of trials up to and including the first success, each with probability `p`."""
    if p == 1:
        return builder.define(lambda at: Constant(1, builder.result.dtype))
    scale = 1 / math.log1p(-p)
    return _define(
        builder, state, lambda stream, at: apply("ceil", apply("log", stream.inner_uniform(at, "f64")) * scale)
    )


@drawing(aten.cauchy.default)
def cauchy(builder: Builder, state: Buffer, _: Buffer, median: float = 0, sigma: float = 1, **__: object) -> Buffer:
    def formula(stream: Stream, at: Indices) -> Scalar:
        angle = (stream.inner_uniform(at, _dtype(builder)) - 0.5) * math.pi
        return apply("tan", angle) * sigma + median

    return _define(builder, state, formula)


@drawing(aten.bernoulli.p)
def bernoulli(builder: Builder, state: Buffer, _: Buffer, p: float = 0.5, **__: object) -> Buffer:
    return _define(builder, state, lambda stream, at: stream.is_below(at, p))


@drawing(aten.bernoulli.default)
def bernoulli_each(builder: Builder, state: Buffer, probabilities: Buffer, **_: object) -> Buffer:
    return bernoulli_by(builder, state, probabilities, probabilities)


@drawing(aten.bernoulli.Tensor)
def bernoulli_by(builder: Builder, state: Buffer, _: Buffer, probabilities: Buffer, **__: object) -> Buffer:
    def is_outside(value: Scalar) -> Scalar:
        inside = (apply("ge", value, as_scalar(0, value.dtype)), apply("le", value, as_scalar(1, value.dtype)))
        return apply("logical_not", apply("logical_and", *inside))

    refuse_any(builder, probabilities, is_outside, "Expected p_in >= 0 && p_in <= 1 to be true")
    dtype = probabilities.dtype if is_floating(probabilities.dtype) else "f32"
    # 16-bit probabilities are compared with more digits than their own type has.
    dtype = math_dtype(dtype)

    def formula(stream: Stream, at: Indices) -> Scalar:
        return apply("lt", stream.uniform(at, dtype), element(probabilities, at, dtype))

    return _define(builder, state, formula)


@drawing(aten.native_dropout.default)
def native_dropout(builder: Builder, state: Buffer, source: Buffer, p: float, train: bool | None) -> tuple[Buffer, ...]:
    result, mask_result = builder.results
    if train is False:
        copied = builder.define(lambda at: Load(source, at), result)
        return copied, builder.define(lambda at: Constant(True, "bool"), mask_result)
    stream = Stream(state, result.shape)
    with builder.part("mask"):
        mask = builder.define(lambda at: stream.is_below(at, 1 - p), mask_result)
    scale = 0.0 if p == 1 else 1 / (1 - p)
    return builder.pointwise(lambda x, kept: x * kept * scale, source, mask, result=result), mask


@drawing(aten.rrelu_with_noise_functional.default)
def rrelu_with_noise(
    builder: Builder, state: Buffer, source: Buffer, noise: Buffer, lower: float = 1 / 8, upper: float = 1 / 3,
    training: bool = False, *_: object,
) -> tuple[Buffer, ...]:  # fmt: skip
    result, noise_result = builder.results

    def is_positive(value: Scalar) -> Scalar:
        return apply("gt", value, as_scalar(0, value.dtype))

    def slope(at: Indices) -> Scalar:
        drawn = stream.uniform(at, result.dtype) * (upper - lower) + lower
        return apply("where", is_positive(element(source, at, drawn.dtype)), as_scalar(1, drawn.dtype), drawn)

    if not training:
        mean = (lower + upper) / 2
        leaky = builder.pointwise(lambda x: apply("where", is_positive(x), x, x * mean), source, result=result)
        return leaky, builder.define(lambda at: Load(noise, at), noise_result)
    stream = Stream(state, result.shape)
    with builder.part("noise"):
        slopes = builder.define(slope, noise_result)
    return builder.pointwise(lambda x, factor: x * factor, source, slopes, result=result), slopes


def _whole_numbers(builder: Builder, state: Buffer, low: Operand, high: Operand) -> Buffer:
    """Integers from `low` to below `high`."""
    if isinstance(low, int) and isinstance(high, int) and high - low >= 2**63:
        return _from_wide_range(builder, state, low, (high - low) // 2)

    def formula(stream: Stream, at: Indices) -> Scalar:
        start, end = element(low, at, "i64"), element(high, at, "i64")
        return stream.below(at, end - start) + start

    return _define(builder, state, formula)


def _from_wide_range(builder: Builder, state: Buffer, low: int, half: int) -> Buffer:
    """Integers from a range larger than 63 bits: the remaining bit selects one of its halves."""

    def formula(stream: Stream, at: Indices) -> Scalar:
        is_upper = apply("lt", stream.bits(at), Constant(0, "i64"))
        start = apply("where", is_upper, Constant(low + half, "i64"), Constant(low, "i64"))
        return stream.below(at, Constant(half, "i64")) + start

    return _define(builder, state, formula)


@drawing(aten.randint.default)
def randint(builder: Builder, state: Buffer, high: int | Index, *_: object, **__: object) -> Buffer:
    return _whole_numbers(builder, state, 0, high)


@drawing(aten.randint.low)
def randint_from(
    builder: Builder, state: Buffer, low: int | Index, high: int | Index, *_: object, **__: object
) -> Buffer:
    return _whole_numbers(builder, state, low, high)


@drawing(aten.randint_like.default, aten.random.to)
def randint_like(builder: Builder, state: Buffer, _: Buffer, high: int | Index, **__: object) -> Buffer:
    return _whole_numbers(builder, state, 0, high)


@drawing(aten.randint_like.low_dtype)
def randint_like_from(
    builder: Builder, state: Buffer, _: Buffer, low: int | Index, high: int | Index, **__: object
) -> Buffer:
    return _whole_numbers(builder, state, low, high)


@drawing(aten.random.default)
def random_of_type(builder: Builder, state: Buffer, _: Buffer, **__: object) -> Buffer:
    return _up_to_limit(builder, state, 0)


@drawing(getattr(aten.random, "from"))
def random_from(builder: Builder, state: Buffer, _: Buffer, low: int, high: int | None, **__: object) -> Buffer:
    return _up_to_limit(builder, state, low) if high is None else _whole_numbers(builder, state, low, high)


def _up_to_limit(builder: Builder, state: Buffer, low: int) -> Buffer:
    """From `low` to the largest value of the type, inclusive where 64 bits suffice."""
    return _whole_numbers(builder, state, low, min(_DTYPE_LIMITS[builder.result.dtype] + 1, 2**63 - 1))


@drawing(aten.randperm.default)
def randperm(builder: Builder, state: Buffer, count: int | Index, **_: object) -> Buffer:
    """The argsort of random numbers."""
    keys = Result("i64", builder.result.shape)
    stream = Stream(state, keys.shape)
    with builder.part("keys"):
        drawn = builder.define(stream.bits, keys)
        places = builder.call("sort", [drawn], [0, 0], [keys, keys])[1]
    return builder.define(lambda at: Load(places, at))


@drawing(aten.multinomial.default)
def multinomial(
    builder: Builder, state: Buffer, weights: Buffer, count: int | Index, replacement: bool = False, **_: object
) -> Buffer:
    dtype = math_dtype(weights.dtype)

    def is_no_weight(value: Scalar) -> Scalar:
        limits = apply("ge", value, Constant(0, dtype)), apply("lt", value, Constant(math.inf, dtype))
        return apply("logical_not", apply("logical_and", *limits))

    refuse_any(builder, weights, is_no_weight, "probability tensor contains either `inf`, `nan` or element < 0")
    last = len(weights.shape) - 1
    totals_shape = (*weights.shape[:last], constant(1))
    with builder.part("total"):
        totals = builder.reduce("sum", weights, [last], result=Result(dtype, totals_shape))
    refuse_any(builder, totals, lambda total: apply("le", total, as_scalar(0, dtype)),
            "invalid multinomial distribution (sum of probabilities <= 0)")  # fmt: skip
    draw = _chosen_again_and_again if replacement else _chosen_once
    return draw(builder, state, weights, totals)


def _chosen_once(builder: Builder, state: Buffer, weights: Buffer, _: Buffer) -> Buffer:
    """Sampling without replacement: the smallest of exponential variables with the weights as rates."""
    dtype = math_dtype(weights.dtype)
    stream = Stream(state, weights.shape)
    with builder.part("rates"):
        rates = builder.define(
            lambda at: element(weights, at, dtype) / _exponential(stream, at, dtype), Result(dtype, weights.shape)
        )
        values = Result(dtype, builder.result.shape)
    _, places = builder.call("sort", [rates], [len(weights.shape) - 1, 1], [values, builder.result])
    return places


def _chosen_again_and_again(builder: Builder, state: Buffer, weights: Buffer, totals: Buffer) -> Buffer:
    """Sampling with replacement: for each sample, how many cumulative weights it exceeds."""
    dtype = math_dtype(weights.dtype)
    last = len(weights.shape) - 1
    wide = Result(dtype, weights.shape)
    with builder.part("sums"):
        plain = builder.define(lambda at: element(weights, at, dtype), wide)
        (sums,) = builder.call("scan", [plain], [last, SCAN_KINDS.index("sum")], [wide])
    stream = Stream(state, builder.result.shape)

    def is_passed(at: Indices) -> Scalar:
        sample, position = at[:-1], at[-1]
        mark = stream.uniform(sample, dtype) * Load(totals, (*sample[:-1], constant(0)))
        return cast(apply("le", Load(sums, (*sample[:-1], position)), mark), "i64")

    end = IndexValue(weights.shape[last] - 1, "i64")
    return builder.combine(
        "sum", (*builder.result.shape, weights.shape[last]), [len(builder.result.shape)], is_passed,
        finish=lambda passed: apply("minimum", passed, end),
    )  # fmt: skip
