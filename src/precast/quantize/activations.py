"""Activations as whole numbers of 8 bits: how far they reach is found out at each call, or was found out before.

Before: ``x: f32[8, 768]``
After:  ``numbers: i8[8, 768]`` and ``scale: f32[8, 1]``; ``x ≈ numbers * scale``
"""

from __future__ import annotations

import torch
from torch import nn

Tensor = torch.Tensor
_LARGEST = 127
_LEAST = 1e-12
"""Of zeros, any scale is right."""


class Activations(nn.Module):
    """Rounds what it is given; gives whole numbers and what to multiply them with."""

    def scale(self, x: Tensor) -> Tensor:
        raise NotImplementedError

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        scale = self.scale(x)
        # Times the inverse: a division for each element takes as long as the product.
        return (x.float() * (1 / scale)).round().clamp(-_LARGEST, _LARGEST).to(torch.int8), scale


class DynamicActivations(Activations):
    """One scale for each row, or, of images, for each image: the largest that there is."""

    def __init__(self, *, is_image: bool = False) -> None:
        super().__init__()
        self.is_image = is_image

    def scale(self, x: Tensor) -> Tensor:
        dims = tuple(range(1, x.ndim)) if self.is_image else (-1,)
        return x.float().abs().amax(dims, keepdim=True).clamp(min=_LEAST) / _LARGEST


class StaticActivations(Activations):
    """One scale for all, from the largest that was seen in examples; what is larger is cut off."""

    largest: Tensor

    def __init__(self, largest: Tensor) -> None:
        super().__init__()
        self.register_buffer("largest", largest.float().clamp(min=_LEAST))

    def scale(self, x: Tensor) -> Tensor:
        return self.largest / _LARGEST
