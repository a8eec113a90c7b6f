"""Reads weights quantized by other tools: the layouts of GPTQ and AWQ, given as plain tensors.

Before: ``qweight: i32[96, 768]``, eight numbers of 4 bits to a word along the depth; ``qzeros: i32[6, 96]``;
        ``scales: f16[6, 768]``
After:  ``QuantizedLinear`` with ``codes: u8[768, 384]``, ``zeros: u8[768, 6]``, ``scales: f16[768, 6]``
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Literal

import torch
from torch import nn

from precast.errors import InputValueError, OptionError
from precast.quantize.codes import Bits, Codes, packed_codes
from precast.quantize.layers import QuantizedLinear, QuantizedWeight, is_linear

Tensor = torch.Tensor
Layout = Literal["gptq", "gptq_v2", "awq"]
_AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
"""The column in each four bits of a word, from the lowest bits up."""


def from_stored(
    layout: Layout,
    *,
    qweight: Tensor,
    qzeros: Tensor,
    scales: Tensor,
    g_idx: Tensor | None = None,
    bias: Tensor | None = None,
    dtype: torch.dtype | None = None,
) -> QuantizedLinear:
    """Return a linear layer over a stored quantized weight; ``dtype`` of activations defaults to that of the scales.

    ``gptq`` files store zero points minus one (most do), ``gptq_v2`` files store them unchanged. ``g_idx`` gives the
    group of each input element, if groups are not in order.
    """
    if layout not in ("gptq", "gptq_v2", "awq"):
        raise OptionError(f"The layout is {layout!r}.", why="a few are known", fix="Pass 'gptq', 'gptq_v2' or 'awq'.")
    groups, columns = scales.shape
    bits = _bits(layout, qweight, qzeros, columns)
    if layout == "awq":
        numbers, zeros = _unpacked_columns(qweight, _AWQ_ORDER), _unpacked_columns(qzeros, _AWQ_ORDER)
    else:
        numbers = _unpacked(qweight, bits).permute(0, 2, 1).reshape(-1, columns)
        zeros = _unpacked(qzeros, bits).reshape(groups, -1)[:, :columns] + (layout == "gptq")
    depth = numbers.shape[0]
    if depth % groups:
        raise InputValueError(
            f"{depth} rows of qweight in {groups} groups.",
            why="groups are equally large",
            fix="Pass qweight and scales of the same layer.",
        )
    order = _order(g_idx, depth, groups)
    numbers = (numbers if order is None else numbers[order]).T.contiguous()
    codes = Codes(bits, depth, depth // groups, *_stored(numbers, scales.T, zeros.T, bits))
    return QuantizedLinear(QuantizedWeight(codes, dtype or scales.dtype), bias, order=order)


def with_stored_weights(model: nn.Module, tensors: Mapping[str, Tensor], layout: Layout = "gptq") -> nn.Module:
    """Return a copy of ``model`` with quantized linear layers where ``tensors`` has a ``qweight``; others are shared.

    ``tensors`` is a checkpoint: tensors by names such as ``model.layers.0.mlp.up_proj.qweight``. Load those that are
    not quantized with ``load_state_dict``.
    """
    known = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    result = copy.deepcopy(model, known)
    found = [name.removesuffix(".qweight") for name in tensors if name.endswith(".qweight")]
    if not found:
        raise InputValueError(
            "There is no qweight among the tensors.", why="stored weights are called so", fix="Pass the checkpoint's."
        )
    for name in found:
        before = result.get_submodule(name)
        if not is_linear(before):
            raise InputValueError(
                f"{name} is {type(before).__name__}, no linear layer.",
                why="stored weights take the place of linear layers",
                fix="Pass the model that the checkpoint was made of.",
            )
        parts = {part: tensors.get(f"{name}.{part}") for part in ("qweight", "qzeros", "scales", "g_idx", "bias")}
        missing = [part for part in ("qzeros", "scales") if parts[part] is None]
        if missing:
            raise InputValueError(
                f"{name} has no {missing[0]}.", why="a stored weight has three parts", fix="Pass the whole checkpoint."
            )
        weight = before.weight
        assert isinstance(weight, Tensor), "linear layers have a weight"
        parent, _, own = name.rpartition(".")
        made = from_stored(layout, **parts, dtype=weight.dtype)  # type: ignore[arg-type]
        setattr(result.get_submodule(parent), own, made.train(before.training))
    return result


def _bits(layout: Layout, qweight: Tensor, qzeros: Tensor, columns: int) -> Bits:
    """The number of bits, derived from the packed sizes."""
    packed = qweight.shape[1] if layout == "awq" else qzeros.shape[1]
    bits = 32 * packed // columns
    is_whole = packed * 32 == bits * columns and qweight.dtype == qzeros.dtype == torch.int32
    if is_whole and bits == 4:
        return 4
    if is_whole and bits == 8 and layout != "awq":
        return 8
    raise InputValueError(
        f"qweight is {qweight.dtype} {list(qweight.shape)}, qzeros {list(qzeros.shape)}, for {columns} columns.",
        why="words of 32 bits with numbers of 4 bits are read, of GPTQ also of 8",
        fix="Look at the layout that was given.",
    )


def _unpacked(words: Tensor, bits: Bits) -> Tensor:
    """Unpack each word, from its lowest bits up, into a new last dimension."""
    shifts = torch.arange(0, 32, bits, dtype=torch.int32, device=words.device)
    return torch.bitwise_right_shift(words.unsqueeze(-1), shifts).bitwise_and((1 << bits) - 1)


def _unpacked_columns(words: Tensor, order: tuple[int, ...]) -> Tensor:
    """Unpack rows of words into 4-bit numbers, in the order of columns."""
    places = torch.tensor(order, device=words.device).argsort()
    return _unpacked(words, 4)[..., places].flatten(1)


def _order(groups_of: Tensor | None, depth: int, groups: int) -> Tensor | None:
    """The permutation that makes groups consecutive; None if they are."""
    if groups_of is None:
        return None
    order = groups_of.long().argsort(stable=True)
    in_order = groups_of.long()[order]
    if groups_of.shape != (depth,) or not torch.equal(in_order, torch.arange(depth) // (depth // groups)):
        raise InputValueError(
            "g_idx has groups of different sizes, or of other inputs.",
            why="every group has as many elements as the others",
            fix="Pass g_idx of the same layer.",
        )
    return None if torch.equal(order, torch.arange(depth)) else order


def _stored(numbers: Tensor, scales: Tensor, zeros: Tensor, bits: Bits) -> tuple[Tensor, Tensor, Tensor]:
    """Codes, scales and zero points as layers store them; 8-bit codes are signed."""
    if bits == 4:
        return packed_codes(numbers.to(torch.uint8)), scales.contiguous(), zeros.to(torch.uint8).contiguous()
    moved = zeros - 128
    kind = torch.int8 if int(moved.max()) <= 127 else torch.float32
    return (numbers - 128).to(torch.int8), scales.contiguous(), moved.to(kind).contiguous()
