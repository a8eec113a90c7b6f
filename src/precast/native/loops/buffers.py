"""Memory with a name, an element type and a layout."""

from __future__ import annotations

from dataclasses import dataclass

from precast.artifact.dtypes import DTYPES
from precast.native.loops.index import Index, as_index, constant, product
from precast.native.loops.memoize import hashed_once, remembered


@hashed_once
@dataclass(frozen=True)
class Buffer:
    """One tensor's memory. Names are unique in a program; strides count elements."""

    name: str
    dtype: str
    shape: tuple[Index, ...]
    strides: tuple[Index, ...]

    @property
    def is_one_number(self) -> bool:
        """Whether it is known to hold exactly one element."""
        return all(size == constant(1) for size in self.shape)

    def is_laid_out_like(self, other: Buffer) -> bool:
        """Whether dtype, shape and layout are equal, so that one could replace the other."""
        return (self.dtype, self.shape, self.strides) == (other.dtype, other.shape, other.strides)

    def offset(self, indices: tuple[Index, ...]) -> Index:
        """The offset, in elements, of the element at `indices`."""
        assert len(indices) == len(self.shape), f"{self.name} has {len(self.shape)} dims, not {len(indices)}"
        return _offset(indices, self.strides)

    @property
    def byte_size(self) -> Index:
        """Bytes from the first to the last element; for dense layouts, the whole size."""
        count, pairs = product(self.shape), zip(self.shape, self.strides, strict=True)
        span = sum(((size - 1) * stride for size, stride in pairs), constant(1))
        has_gaps = count.constant and span.constant is not None and span.constant > count.constant
        return (span if has_gaps else count) * DTYPES[self.dtype].item_size

    @property
    def is_contiguous(self) -> bool:
        return self.strides == contiguous_strides(self.shape)


def as_complex(pairs: Buffer) -> Buffer:
    """Pairs of real numbers, adjacent along the last dimension, as one complex number each."""
    assert pairs.strides[-1] == constant(1), f"the parts of {pairs.name} are apart"
    dtype = {"f32": "c64", "f64": "c128"}[pairs.dtype]
    return Buffer(pairs.name, dtype, pairs.shape[:-1], tuple(map(_half, pairs.strides[:-1])))


def _half(stride: Index) -> Index:
    assert all(factor % 2 == 0 for _, factor in stride.terms), f"{stride} is odd"
    return Index(tuple((monomial, factor // 2) for monomial, factor in stride.terms))


@dataclass(frozen=True)
class View:
    """A strided view of a buffer: the operand of a library call."""

    buffer: Buffer
    shape: tuple[Index, ...]
    strides: tuple[Index, ...]
    offset: Index

    @property
    def dtype(self) -> str:
        return self.buffer.dtype


@remembered
def _offset(indices: tuple[Index, ...], strides: tuple[Index, ...]) -> Index:
    total = constant(0)
    for position, stride in zip(indices, strides, strict=True):
        total = total + position * stride
    return total


def contiguous_strides(shape: tuple[Index, ...]) -> tuple[Index, ...]:
    """Row-major strides. A dimension of size 0 counts as 1, as in PyTorch."""
    strides = [constant(1)]
    for size in reversed(shape[1:]):
        strides.append(strides[-1] * (constant(1) if size.constant == 0 else size))
    return tuple(reversed(strides)) if shape else ()


def channels_last_strides(shape: tuple[Index, ...]) -> tuple[Index, ...]:
    """Strides of a buffer whose dimension 1 is innermost."""
    batch, *spatial, channels = contiguous_strides((shape[0], *shape[2:], shape[1]))
    return (batch, channels, *spatial)


def contiguous_buffer(name: str, dtype: str, shape: tuple[Index | int, ...]) -> Buffer:
    sizes = tuple(map(as_index, shape))
    return Buffer(name, dtype, sizes, contiguous_strides(sizes))


def whole(buffer: Buffer) -> View:
    return View(buffer, buffer.shape, buffer.strides, constant(0))
