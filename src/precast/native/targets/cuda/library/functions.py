"""Operations of loop IR that Triton lacks, and the random numbers of ``native/rules/random.py``.

Kernels import these by name. Integer division by zero returns 0, as in the code for CPUs.
"""

import triton
import triton.language as tl
from triton.language.extra import libdevice
from triton.language.random import philox_impl


@triton.jit
def floor_divide(a, b):
    """``a // b`` of subscripts, rounded down."""
    quotient = a // b
    return tl.where((quotient * b != a) & ((a < 0) != (b < 0)), quotient - 1, quotient)


@triton.jit
def floor_remainder(a, b):
    """The remainder of `floor_divide`."""
    return a - floor_divide(a, b) * b


@triton.jit
def random_bits(seed, number, place):
    """64 bits of Philox 4x32-10, the same as on CPUs."""
    seed, number, place = seed.to(tl.uint64), number.to(tl.uint64), place.to(tl.uint64)
    zero = place * 0
    number, seed = number + zero, seed + zero
    a, b, _, _ = philox_impl(
        place.to(tl.uint32),
        (place >> 32).to(tl.uint32),
        number.to(tl.uint32),
        (number >> 32).to(tl.uint32),
        seed.to(tl.uint32),
        (seed >> 32).to(tl.uint32),
        10,
    )
    return (a.to(tl.uint64) | (b.to(tl.uint64) << 32)).to(tl.int64)


@triton.jit
def maximum(a, b):
    """NaN propagates."""
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def minimum(a, b):
    """NaN propagates."""
    return tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def multiply(a, b):
    return a * b


@triton.jit
def sign(x):
    return (x > 0).to(x.dtype) - (x < 0).to(x.dtype)


@triton.jit
def sigmoid(x):
    one = tl.full((), 1.0, x.dtype)
    return one / (one + libdevice.exp(-x))


@triton.jit
def sigmoid_single(x):
    return tl.div_rn(1.0, 1.0 + libdevice.exp(-x))


@triton.jit
def divide_whole(a, b):
    """``a / b`` of integers, rounded towards zero."""
    is_zero = b == 0
    return tl.where(is_zero, tl.zeros_like(a), a // tl.where(is_zero, tl.full((), 1, b.dtype), b))


@triton.jit
def remainder_whole(a, b):
    """The remainder, with the sign of `a`."""
    return tl.where(b == 0, tl.zeros_like(a), a - divide_whole(a, b) * b)


@triton.jit
def div_floor_whole(a, b):
    quotient = divide_whole(a, b)
    return tl.where((quotient * b != a) & ((a < 0) != (b < 0)) & (b != 0), quotient - 1, quotient)


@triton.jit
def modulo_whole(a, b):
    """The remainder, with the sign of `b`."""
    rest = remainder_whole(a, b)
    return tl.where((rest != 0) & ((rest < 0) != (b < 0)), rest + b, rest)


@triton.jit
def modulo(a, b):
    rest = libdevice.fmod(a, b)
    return tl.where((rest != 0) & ((rest < 0) != (b < 0)), rest + b, rest)


@triton.jit
def div_floor(a, b, exact):
    """As in Python: the remainder has the divisor's sign; `exact` is ``a / b``."""
    rest = libdevice.fmod(a, b)
    quotient = tl.div_rn(a - rest, b) if a.dtype == tl.float32 else (a - rest) / b
    quotient = tl.where((rest != 0) & ((b < 0) != (rest < 0)), quotient - 1, quotient)
    whole = libdevice.floor(quotient)
    rounded = tl.where(quotient - whole > 0.5, whole + 1, whole)
    zero = libdevice.copysign(tl.zeros_like(exact), exact)
    return tl.where(b == 0, exact, tl.where(quotient == 0, zero, rounded))


@triton.jit
def left_shift(a, b):
    bits: tl.constexpr = a.dtype.primitive_bitwidth
    is_out = (b < 0) | (b >= bits)
    return tl.where(is_out, tl.zeros_like(a), a << tl.where(is_out, tl.zeros_like(b), b))


@triton.jit
def right_shift(a, b):
    bits: tl.constexpr = a.dtype.primitive_bitwidth
    is_out = (b < 0) | (b >= bits)
    inside = a >> tl.where(is_out, tl.zeros_like(b), b)
    return tl.where(is_out, tl.where(a < 0, tl.full((), -1, tl.int64), 0).to(a.dtype), inside)
