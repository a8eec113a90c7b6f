"""Complex numbers as pairs along a last dimension, and Fourier transforms of these by a library."""

from __future__ import annotations

from collections.abc import Sequence

from precast.native.loops.buffers import Buffer
from precast.native.loops.index import Index, constant
from precast.native.loops.program import Store
from precast.native.loops.scalars import Load
from precast.native.rules.builder import Builder, loop_indices, loop_variables
from precast.native.rules.registry import lowering
from precast.ops import own_operators


@lowering(own_operators.joined)
def joined(builder: Builder, real: Buffer, imaginary: Buffer) -> Buffer:
    """Write both parts in one iteration: a loop over the parts would select between them each time."""
    target = builder.result_buffer()
    at = loop_indices(real.shape)
    stores = (Store(target, (*at, constant(number)), Load(part, at)) for number, part in enumerate((real, imaginary)))
    builder.add_nest(target, loop_variables(at), tuple(stores))
    return target


COMPLEX, OF_REAL, TO_REAL = range(3)
"""The kind of transform (real or complex input and result): the first number of the routine."""


@lowering(own_operators.fft)
def fft(builder: Builder, pairs: Buffer, dims: Sequence[int], normalization: int, forward: bool) -> Buffer:
    return builder.call("fft", [pairs], [COMPLEX, int(forward), normalization, *dims, -1])[0]


@lowering(own_operators.fft_of_real)
def fft_of_real(builder: Builder, source: Buffer, dims: Sequence[int], normalization: int) -> Buffer:
    return builder.call("fft", [source], [OF_REAL, 1, normalization, *dims, -1])[0]


@lowering(own_operators.fft_to_real)
def fft_to_real(builder: Builder, pairs: Buffer, dims: Sequence[int], normalization: int, size: Index | int) -> Buffer:
    return builder.call("fft", [pairs], [TO_REAL, 0, normalization, *dims, -1])[0]
