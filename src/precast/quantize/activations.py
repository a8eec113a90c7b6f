"""Quantization of activations to 8-bit integers, with scales computed at each call or by calibration.

Before: ``x: f32[8, 768]``
After:  ``numbers: i8[8, 768]`` and ``scale: f32[8, 1]``; ``x ≈ numbers * scale``
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import nn

Tensor = torch.Tensor
_LARGEST = 127
_LEAST = 1e-12
"""A lower bound, for activations that are all zero: any scale is right for them."""


class Activations(nn.Module, ABC):
    """Rounds its input; returns integers and the scale."""

    @abstractmethod
    def scale(self, x: Tensor) -> Tensor:
        """The scale of the integers."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        scale = self.scale(x)
        # Multiplied by the inverse: a division per element would take as long as the matrix product.
        return (x.float() * (1 / scale)).round().clamp(-_LARGEST, _LARGEST).to(torch.int8), scale


class DynamicActivations(Activations):
    """One scale for each row, or for each image, from the largest element."""

    def __init__(self, *, is_image: bool = False) -> None:
        super().__init__()
        self.is_image = is_image

    def scale(self, x: Tensor) -> Tensor:
        dims = tuple(range(1, x.ndim)) if self.is_image else (-1,)
        return x.float().abs().amax(dims, keepdim=True).clamp(min=_LEAST) / _LARGEST


class StaticActivations(Activations):
    """One scale for all, from the largest element in calibration; larger elements are clipped."""

    largest: Tensor

    def __init__(self, largest: Tensor) -> None:
        super().__init__()
        self.register_buffer("largest", largest.float().clamp(min=_LEAST))

    def scale(self, x: Tensor) -> Tensor:
        return self.largest / _LARGEST
