"""Layers over quantized weights, in plain ATen operators. They replace the original layers."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional

from precast.quantize.activations import Activations
from precast.quantize.codes import Bits, Codes, as_codes, dequantized

Tensor = torch.Tensor


class QuantizedWeight(nn.Module):
    """A quantized matrix ``[rows, columns]``; layers that share a weight share this module."""

    codes: Tensor
    scales: Tensor
    zeros: Tensor | None

    def __init__(self, codes: Codes, dtype: torch.dtype) -> None:
        super().__init__()
        self.bits: Bits = codes.bits
        self.columns, self.group = codes.columns, codes.group
        self.dtype = dtype
        self.register_buffer("codes", codes.codes)
        self.register_buffer("scales", codes.scales)
        self.register_buffer("zeros", codes.zeros)

    def forward(self, dtype: torch.dtype | None = None) -> Tensor:
        """Return the dequantized matrix."""
        return dequantized(
            self.codes, self.scales, self.zeros, bits=self.bits, columns=self.columns, dtype=dtype or self.dtype
        )

    def rows(self, places: Tensor) -> Tensor:
        """Return some dequantized rows."""
        zeros = None if self.zeros is None else self.zeros[places.flatten()]
        chosen = dequantized(
            self.codes[places.flatten()], self.scales[places.flatten()], zeros,
            bits=self.bits, columns=self.columns, dtype=self.dtype,
        )  # fmt: skip
        return chosen.view(*places.shape, self.columns)

    def extra_repr(self) -> str:
        kind = "symmetric" if self.zeros is None else "asymmetric"
        return f"int{self.bits}[{self.codes.shape[0]}, {self.columns}], groups of {self.group}, {kind}"


class QuantizedLinear(nn.Module):
    """``x @ weight.T + bias`` over a quantized weight; ``order``, if given, is a permutation of the elements of x.

    With ``activations``, x is quantized as well, and the product is computed in integers.
    """

    order: Tensor | None

    def __init__(
        self,
        quantized: QuantizedWeight,
        bias: Tensor | None,
        *,
        order: Tensor | None = None,
        activations: Activations | None = None,
    ) -> None:
        super().__init__()
        self.quantized, self.activations = quantized, activations
        self.bias = bias if bias is None else nn.Parameter(bias.detach(), requires_grad=False)
        self.register_buffer("order", order)
        self.out_features, self.in_features = quantized.codes.shape[0], quantized.columns

    @property
    def weight(self) -> Tensor:
        """The dequantized weight, for code that reads it."""
        weight: Tensor = self.quantized()
        return weight if self.order is None else weight[:, self.order.argsort()]

    def forward(self, x: Tensor) -> Tensor:
        if self.order is not None:
            x = x.index_select(-1, self.order)
        if self.activations is None:
            return functional.linear(x, self.quantized(x.dtype), self.bias)
        numbers, scale = self.activations(x)
        product = functional.linear(numbers.float(), self.quantized.codes.float())
        return _scaled(product, scale, self.quantized.scales[:, 0], self.bias, x.dtype)


class QuantizedConv(nn.Module):
    """A convolution with 8-bit integer activations and weights."""

    codes: Tensor
    scales: Tensor

    def __init__(self, original: nn.Module, activations: Activations) -> None:
        super().__init__()
        geometry: Any = original
        weight: Tensor = geometry.weight
        found = as_codes(weight.flatten(1), bits=8, group=None, symmetric=True)
        self.activations, self.dtype = activations, weight.dtype
        self.bias = None if geometry.bias is None else nn.Parameter(geometry.bias.detach(), requires_grad=False)
        self.register_buffer("codes", found.codes.view(weight.shape))
        self.register_buffer("scales", found.scales[:, 0])
        self.stride, self.padding = geometry.stride, geometry.padding
        self.dilation, self.groups = geometry.dilation, geometry.groups
        self._convolve = _CONVOLUTIONS[weight.ndim - 2]

    @property
    def weight(self) -> Tensor:
        """The dequantized weight, for code that reads it."""
        return (self.codes * self.scales.view(-1, *[1] * (self.codes.ndim - 1))).to(self.dtype)

    def forward(self, x: Tensor) -> Tensor:
        numbers, scale = self.activations(x)
        product = self._convolve(
            numbers.float(), self.codes.float(), None, self.stride, self.padding, self.dilation, self.groups
        )
        channels = [-1, *[1] * (self.codes.ndim - 2)]
        bias = None if self.bias is None else self.bias.view(channels)
        return _scaled(product, scale, self.scales.view(channels), bias, x.dtype)


_CONVOLUTIONS: dict[int, Any] = {1: functional.conv1d, 2: functional.conv2d, 3: functional.conv3d}


def _scaled(product: Tensor, scale: Tensor, scales: Tensor, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
    """Dequantize a product of integers, and add the bias."""
    result = product * (scale * scales)
    return (result if bias is None else result + bias).to(dtype)


class QuantizedEmbedding(nn.Module):
    """An embedding over a quantized weight."""

    def __init__(self, quantized: QuantizedWeight, padding_idx: int | None) -> None:
        super().__init__()
        self.quantized, self.padding_idx = quantized, padding_idx
        self.num_embeddings, self.embedding_dim = quantized.codes.shape[0], quantized.columns

    @property
    def weight(self) -> Tensor:
        """The dequantized weight, for code that reads it."""
        weight: Tensor = self.quantized()
        return weight

    def forward(self, places: Tensor) -> Tensor:
        return self.quantized.rows(places)


def is_linear(module: nn.Module) -> bool:
    """Whether this is exactly a linear layer: subclasses may use the weight in other ways."""
    return type(module) is nn.Linear or is_transposed_linear(module)


def is_embedding(module: nn.Module) -> bool:
    return type(module) is nn.Embedding


def is_convolution(module: nn.Module) -> bool:
    """Whether quantizing this convolution pays: it has zero padding, and filters over several channels."""
    if type(module) not in (nn.Conv1d, nn.Conv2d, nn.Conv3d):
        return False
    kind: Any = module
    return bool(kind.padding_mode == "zeros" and kind.in_channels // kind.groups > 1)


def is_transposed_linear(module: nn.Module) -> bool:
    """Whether this is GPT-2's linear layer, whose weight is ``[in, out]``."""
    kind: Any = type(module)
    return (kind.__module__, kind.__name__) == ("transformers.pytorch_utils", "Conv1D")
