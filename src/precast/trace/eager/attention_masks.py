"""Simplifies attention with a constant mask that masks nothing, or is causal.

Before: ``scaled_dot_product_attention(q, k, v, attn_mask=mask)`` with a ``mask`` that does not depend on inputs
After:  ``scaled_dot_product_attention(q, k, v)``, or ``(q, k, v, is_causal=True)``

Libraries omit such masks in eager, and materialize them while they are traced. With a mask, fewer kernels apply: on a
GPU, the memory-efficient kernels reject masks whose rows are one expanded element.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from precast.trace.functionalize.known_values import known_value, unrecorded


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Torch's attention, with its mask simplified."""
    options: dict[str, Any] = {"scale": scale, "enable_gqa": enable_gqa}
    if attn_mask is not None and not is_causal and _fits(attn_mask, query, key):
        if _hides_nothing(attn_mask):
            attn_mask = None
        elif _is_causal(attn_mask):
            attn_mask, is_causal = None, True
        else:
            attn_mask = _with_whole_rows(attn_mask)
    return functional.scaled_dot_product_attention(query, key, value, attn_mask, dropout_p, is_causal, **options)


def _fits(mask: Tensor, query: Tensor, key: Tensor) -> bool:
    """Whether eager accepts the mask, with static numbers of rows and columns."""
    scores = (*query.shape[:-1], key.shape[-2])
    if query.ndim < 2 or mask.ndim < 2 or mask.ndim > len(scores) or mask.dtype not in (torch.bool, query.dtype):
        return False
    sizes = zip(mask.shape[::-1], scores[::-1], strict=False)
    return mask.shape[-2:] == scores[-2:] and all(
        isinstance(size, int) and isinstance(wanted, int) and size in (1, wanted) for size, wanted in sizes
    )


def _hides_nothing(mask: Tensor) -> bool:
    found = known_value(mask)
    if found is None:
        return False
    with unrecorded():
        matrices = _shown_once(found)
        shown = matrices if matrices.dtype is torch.bool else matrices == 0
        return shown.all().item() is True


def _is_causal(mask: Tensor) -> bool:
    """Whether the mask is square and lower triangular."""
    if mask.shape[-1] != mask.shape[-2] or (found := known_value(mask)) is None:
        return False
    with unrecorded():
        matrices, seen = _shown_once(found), torch.ones(mask.shape[-2:], dtype=torch.bool).tril()
        if matrices.dtype is torch.bool:
            agrees = matrices == seen
        else:
            agrees = torch.where(seen, matrices == 0, matrices <= torch.finfo(matrices.dtype).min)
        return agrees.all().item() is True


def _with_whole_rows(mask: Tensor) -> Tensor:
    """On a GPU: the mask with its rows materialized, if they are one expanded element."""
    if mask.device.type != "cuda" or mask.stride(-1) == 1 or mask.shape[-1] == 1:
        return mask
    return _shown_once(mask).clone(memory_format=torch.contiguous_format).expand(mask.shape)


def _shown_once(mask: Tensor) -> Tensor:
    """The mask with expanded batch dimensions reduced to size 1."""
    for dim, stride in enumerate(mask.stride()[:-2]):
        if stride == 0:
            mask = mask.narrow(dim, 0, min(1, mask.shape[dim]))
    return mask
