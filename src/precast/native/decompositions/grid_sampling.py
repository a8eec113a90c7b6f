"""``grid_sampler_2d`` where the grid is not finite, and its gradient.

The value of a point is a weighted sum of a few pixels, with weights that depend on the point's position. The image's
gradient is therefore a weighted scatter of the result's; the grid's is the sum over the pixels of their values times
the slopes of their weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch._decomp import decomposition_table

_BILINEAR, _NEAREST, _BICUBIC = range(3)
_ZEROS, _BORDER, _REFLECTION = range(3)
_SHARPNESS = -0.75


@dataclass(frozen=True)
class _Axis:
    """Coordinates of points along one axis of an image, in pixels, and their derivatives with respect to the grid."""

    size: int
    position: Tensor
    slope: Tensor
    padding: int
    align_corners: bool

    def moved_inside(self) -> _Axis:
        """Points outside moved inside by the padding mode; a clamped coordinate has derivative 0."""
        position, slope = self.position, self.slope
        if self.padding == _REFLECTION:
            position, slope = self._reflected(position, slope)
        if self.padding != _ZEROS:
            is_free = (position > 0) & (position < self.size - 1)
            slope = torch.where(is_free, slope, 0)
            # Not `clamp`: a NaN is moved to the first pixel.
            position = torch.where(position > 0, position, 0).clamp(max=self.size - 1)
        return _Axis(self.size, position, slope, self.padding, self.align_corners)

    def _reflected(self, position: Tensor, slope: Tensor) -> tuple[Tensor, Tensor]:
        low, high = (0.0, self.size - 1.0) if self.align_corners else (-0.5, self.size - 0.5)
        if high == low:
            return torch.zeros_like(position), torch.zeros_like(slope)
        distance = position - low
        length = distance.abs()
        turns, rest = torch.floor(length / (high - low)), torch.fmod(length, high - low)
        is_even = torch.remainder(turns, 2) == 0
        sign = torch.where(distance < 0, -1.0, 1.0).to(slope.dtype)
        reflected = torch.where(is_even, rest + low, high - rest)
        return reflected, slope * sign * torch.where(is_even, 1.0, -1.0).to(slope.dtype)

    def pixel(self, number: Tensor) -> tuple[Tensor, Tensor]:
        """A pixel by its number, any of the image where it is outside, and whether it is inside."""
        is_inside = (number >= 0) & (number <= self.size - 1)
        return torch.where(is_inside, number, 0).to(torch.int64), is_inside


def _axis(coordinate: Tensor, size: int, padding: int, *, align_corners: bool) -> _Axis:
    if align_corners:
        position, factor = (coordinate + 1) * ((size - 1) / 2), (size - 1) / 2
    else:
        position, factor = ((coordinate + 1) * size - 1) / 2, size / 2
    return _Axis(size, position, torch.full_like(coordinate, factor), padding, align_corners)


@dataclass(frozen=True)
class _Taps:
    """The pixels along an axis that points read, in a last dimension: numbers, weights, and slopes of the weights."""

    number: Tensor
    weight: Tensor
    slope: Tensor
    is_inside: Tensor


def _taps(axis: _Axis, mode: int) -> _Taps:
    if mode == _BICUBIC:
        return _cubic_taps(axis)
    axis = axis.moved_inside()
    if mode == _NEAREST:
        number, is_inside = axis.pixel(axis.position.round().unsqueeze(-1))
        return _Taps(
            number, torch.ones_like(axis.position)[..., None], torch.zeros_like(axis.slope)[..., None], is_inside
        )
    first = axis.position.floor()
    beyond = axis.position - first
    number, is_inside = axis.pixel(first.unsqueeze(-1) + torch.arange(2))
    return _Taps(number, torch.stack([1 - beyond, beyond], -1), torch.stack([-axis.slope, axis.slope], -1), is_inside)


def _cubic_taps(axis: _Axis) -> _Taps:
    """Four pixels, each clamped on its own."""
    first = axis.position.floor()
    weights, slopes = zip(*(_cubic_weight(axis.position - first, step) for step in range(4)), strict=True)
    four = replace(axis, position=first.unsqueeze(-1) - 1 + torch.arange(4), slope=axis.slope.unsqueeze(-1))
    number, is_inside = axis.pixel(four.moved_inside().position)
    return _Taps(number, torch.stack(weights, -1), torch.stack(slopes, -1) * axis.slope.unsqueeze(-1), is_inside)


def _cubic_weight(beyond: Tensor, step: int) -> tuple[Tensor, Tensor]:
    """The weight of pixel `step` of four, by its distance, and its derivative with respect to the point."""
    a = _SHARPNESS
    distance = beyond + 1 - step if step < 2 else step - 1 - beyond
    direction = 1.0 if step < 2 else -1.0
    if step in (1, 2):
        weight = ((a + 2) * distance - (a + 3)) * distance * distance + 1
        slope = (3 * (a + 2) * distance - 2 * (a + 3)) * distance
    else:
        weight = ((a * distance - 5 * a) * distance + 8 * a) * distance - 4 * a
        slope = (3 * a * distance - 10 * a) * distance + 8 * a
    return weight, slope * direction


def grid_sampler_2d(
    image: Tensor, grid: Tensor, interpolation_mode: int, padding_mode: int, align_corners: bool
) -> Tensor:
    """Torch's decomposition, but eager's values at NaN and infinity: the first pixel, or NaN, where it has zeros."""
    if interpolation_mode != _BICUBIC and padding_mode != _ZEROS:
        # An infinite coordinate is clamped, but has no reflection.
        grid = torch.where(grid.isnan() if padding_mode == _BORDER else ~grid.isfinite(), -1, grid)
    plain = decomposition_table[torch.ops.aten.grid_sampler_2d.default]
    result: Tensor = plain(image, grid, interpolation_mode, padding_mode, align_corners)
    if interpolation_mode == _BILINEAR and padding_mode == _ZEROS:
        is_finite = grid[..., 0].isfinite() & grid[..., 1].isfinite()
        result = torch.where(is_finite.unsqueeze(1), result, torch.nan)
    return result


def grid_sampler_2d_backward(
    gradient: Tensor, image: Tensor, grid: Tensor, interpolation_mode: int, padding_mode: int, align_corners: bool,
    output_mask: Sequence[bool],
) -> tuple[Tensor | None, Tensor | None]:  # fmt: skip
    """Gradients of the image and of the grid, each if it is requested."""
    batch, channels, height, width = image.shape
    dtype = torch.promote_types(image.dtype, torch.float32)
    columns, rows = (
        _axis(grid[..., each].to(dtype), size, padding_mode, align_corners=align_corners)
        for each, size in enumerate((width, height))
    )
    tangent = gradient.to(dtype)[..., None, None]
    row, column = _taps(rows, interpolation_mode), _taps(columns, interpolation_mode)
    # From here on, dimensions are image, channel, the grid's two, and the pixels that a point reads.
    places = [
        torch.arange(batch).view(-1, 1, 1, 1, 1, 1),
        torch.arange(channels).view(1, -1, 1, 1, 1, 1),
        row.number[:, None, ..., :, None],
        column.number[:, None, ..., None, :],
    ]
    is_inside = row.is_inside[..., :, None] & column.is_inside[..., None, :]
    image_gradient = grid_gradient = None
    if output_mask[0]:
        weight = row.weight[..., :, None] * column.weight[..., None, :]
        share = torch.where(is_inside.unsqueeze(1), tangent * weight.unsqueeze(1), 0)
        zeros = torch.zeros(image.shape, dtype=dtype)
        image_gradient = torch.ops.aten.index_put(zeros, places, share, True).to(image.dtype)
    if output_mask[1]:
        values = torch.ops.aten.index(image.to(dtype), places)
        along = torch.where(is_inside, (values * tangent).sum(1), 0)
        by_column = along * row.weight[..., :, None] * column.slope[..., None, :]
        by_row = along * row.slope[..., :, None] * column.weight[..., None, :]
        grid_gradient = torch.stack([by_column.sum((-2, -1)), by_row.sum((-2, -1))], -1).to(grid.dtype)
    return image_gradient, grid_gradient
