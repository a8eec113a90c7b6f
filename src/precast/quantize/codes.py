"""Quantized weights: how integer codes are found, stored and dequantized.

Before: ``weight: f32[768, 3072]``
After:  ``codes: u8[768, 1536]``, two numbers of 4 bits to a byte, the first in its low half; ``scales: f32[768, 48]``,
        ``zeros: u8[768, 48]``, one for each group of 64 numbers; ``weight ≈ (codes - zeros) * scales``

Dequantization is written in plain ATen operators: eager torch runs it directly, and the native backend matches the
pattern and multiplies with the stored codes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

Bits = Literal[8, 4]
Tensor = torch.Tensor

_ROWS_AT_ONCE = 1 << 22
"""About how many weights are rounded at a time: trying ranges takes memory for each of them."""
_SHRUNK = (0.95, 0.9, 0.85, 0.8, 0.75, 0.7)
"""Fractions of a group's range that are tried for 4 bits: clipping a few weights often costs less than coarse steps."""


@dataclass(frozen=True)
class Codes:
    """A matrix ``[rows, columns]`` in which ``group`` neighbours in a row share a scale, and a zero point if any.

    The last group is padded with zeros. Without zero points, 8-bit codes are signed, and 4-bit codes have an offset of
    8.
    """

    bits: Bits
    columns: int
    group: int
    codes: Tensor
    scales: Tensor
    zeros: Tensor | None


def as_codes(weight: Tensor, *, bits: Bits, group: int | None, symmetric: bool) -> Codes:
    """Quantize a matrix; without ``group``, each row has one scale."""
    rows, columns = weight.shape
    size = columns if group is None else min(group, columns)
    # Two numbers share a byte.
    size += size % 2 if bits == 4 else 0
    groups = -(-columns // size)
    chunk = max(1, _ROWS_AT_ONCE // max(1, columns))
    found = [
        _rounded(
            torch.nn.functional.pad(part.detach().float(), (0, groups * size - columns)).view(-1, groups, size),
            bits,
            symmetric,
        )
        for part in weight.split(chunk)
    ]
    numbers, scales, zeros = (torch.cat(parts) for parts in zip(*found, strict=True))
    codes = packed_codes(numbers.view(rows, -1)) if bits == 4 else numbers.view(rows, -1)
    return Codes(bits, columns, size, codes, scales, None if symmetric else zeros)


def dequantized(
    codes: Tensor, scales: Tensor, zeros: Tensor | None, *, bits: Bits, columns: int, dtype: torch.dtype
) -> Tensor:
    """Dequantize codes to floats."""
    rows, groups = scales.shape
    if bits == 4:
        shifts = torch.arange(0, 8, 4, dtype=torch.uint8, device=codes.device)
        codes = torch.bitwise_right_shift(codes.unsqueeze(-1), shifts).bitwise_and(15)
    numbers = codes.reshape(rows, groups, -1).to(dtype)
    if zeros is not None:
        numbers = numbers - zeros.unsqueeze(-1).to(dtype)
    elif bits == 4:
        numbers = numbers - 8
    weight = (numbers * scales.unsqueeze(-1).to(dtype)).reshape(rows, -1)
    return weight if weight.shape[1] == columns else weight[:, :columns]


def packed_codes(numbers: Tensor) -> Tensor:
    """Pack 4-bit codes, two per byte."""
    return numbers[:, ::2] | numbers[:, 1::2] << 4


def _rounded(weight: Tensor, bits: Bits, symmetric: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Codes, scales and zero points of groups, which are the last dimension."""
    low, high = weight.amin(-1, keepdim=True), weight.amax(-1, keepdim=True)
    numbers, scale, zero = _in_range(weight, low, high, bits, symmetric)
    least = _error(weight, numbers, scale, zero)
    for share in _SHRUNK if bits == 4 else ():
        tried = _in_range(weight, low * share, high * share, bits, symmetric)
        error = _error(weight, *tried)
        is_better = error < least
        least = torch.where(is_better, error, least)
        numbers, scale, zero = (
            torch.where(is_better, new, old) for new, old in zip(tried, (numbers, scale, zero), strict=True)
        )
    is_signed = bits == 8
    return (
        numbers.to(torch.int8 if is_signed else torch.uint8),
        scale.squeeze(-1),
        zero.squeeze(-1).to(torch.int8 if is_signed else torch.uint8),
    )


def _error(weight: Tensor, numbers: Tensor, scale: Tensor, zero: Tensor) -> Tensor:
    return ((numbers - zero) * scale - weight).square().sum(-1, keepdim=True)


def _in_range(weight: Tensor, low: Tensor, high: Tensor, bits: Bits, symmetric: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Codes, scale and zero point for a range of weights, still as floats."""
    # Signed 8-bit codes start at -128, 4-bit codes at 0.
    first, steps = (-128, 255) if bits == 8 else (0, 15)
    middle = first + (steps + 1) // 2
    if symmetric:
        most = torch.maximum(high, -low)
        scale, zero = most / (steps // 2), torch.full_like(most, middle)
        first += 1
        steps -= 1
    else:
        low, high = low.clamp(max=0), high.clamp(min=0)
        scale = (high - low) / steps
        zero = (first - low / _not_zero(scale)).round().clamp(first, first + steps)
    scale = _not_zero(scale)
    return (weight / scale + zero).round().clamp(first, first + steps), scale, zero


def _not_zero(scale: Tensor) -> Tensor:
    """Replace the scale of a group of zeros, for which any is right, by 1."""
    return torch.where(scale > 0, scale, torch.ones_like(scale))
