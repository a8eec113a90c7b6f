"""The one table of element types in files and compiled code, by their short names.

Never imports torch: ``graph.tensor_spec`` has torch's own objects by these names.
"""

from __future__ import annotations

from typing import NamedTuple


class ElementType(NamedTuple):
    """An element type: its names in DLPack, numpy and torch, and numpy's type that carries its bits."""

    code: int
    bits: int
    name: str
    carrier: str

    @property
    def item_size(self) -> int:
        return self.bits // 8

    @property
    def is_complex(self) -> bool:
        """Whether it exists only at the boundary of programs: inside, complex numbers are pairs of real ones."""
        return self.code == 5

    @property
    def is_floating(self) -> bool:
        return self.code in (2, 4)


DTYPES = {
    "f64": ElementType(2, 64, "float64", "<f8"),
    "f32": ElementType(2, 32, "float32", "<f4"),
    "f16": ElementType(2, 16, "float16", "<f2"),
    "bf16": ElementType(4, 16, "bfloat16", "<u2"),
    "i64": ElementType(0, 64, "int64", "<i8"),
    "i32": ElementType(0, 32, "int32", "<i4"),
    "i16": ElementType(0, 16, "int16", "<i2"),
    "i8": ElementType(0, 8, "int8", "|i1"),
    "u8": ElementType(1, 8, "uint8", "|u1"),
    "bool": ElementType(6, 8, "bool", "|b1"),
    "c64": ElementType(5, 64, "complex64", "<c8"),
    "c128": ElementType(5, 128, "complex128", "<c16"),
}
SHORT_NAMES = {each.name: short for short, each in DTYPES.items()}
"""Numpy's and torch's name of an element type → its short name."""
