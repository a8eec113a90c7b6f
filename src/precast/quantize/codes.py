"""Weights as whole numbers of few bits: how they are found, stored, and made floats again.

Before: ``weight: f32[768, 3072]``
After:  ``codes: u8[768, 1536]``, two numbers of 4 bits to a byte, the first in its low half; ``scales: f32[768, 48]``,
        ``zeros: u8[768, 48]``, one for each group of 64 numbers; ``weight ≈ (codes - zeros) * scales``

Making floats of them is written in plain ATen operators: eager torch runs it as it is, and the native backend knows the
pattern and multiplies with what is stored.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

Bits = Literal[8, 4]
Tensor = torch.Tensor

_ROWS_AT_ONCE = 1 << 22
"""About how many weights are rounded at a time: trying ranges takes memory for each."""
_SHRUNK = (0.95, 0.9, 0.85, 0.8, 0.75, 0.7)
"""Shares of a group's range that are tried for 4 bits: cutting off a few weights often costs less than coarse steps."""


@dataclass(frozen=True)
class Codes:
    """A matrix ``[rows, columns]`` of which ``group`` neighbours in a row share a scale, and a zero point if any.

    The last group is filled up with zeros. Without zero points, codes of 8 bits are signed, and those of 4 bits are 8
    more than the number that they mean.
    """

    bits: Bits
    columns: int
    group: int
    codes: Tensor
    scales: Tensor
    zeros: Tensor | None


def as_codes(weight: Tensor, *, bits: Bits, group: int | None, symmetric: bool) -> Codes:
    """The nearest that a matrix has to codes; without `group`, all of a row has one scale."""
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
    """The floats that codes mean."""
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
    """Codes of 4 bits, two to a byte."""
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
    """Codes for a range of weights, still as floats."""
    # Signed codes of 8 bits go from -128 on, those of 4 bits from 0 on.
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
    """A group of zeros has any scale."""
    return torch.where(scale > 0, scale, torch.ones_like(scale))
