"""Operators of the Core ATen set that are taken apart before lowering: their parts have rules, and fuse.

What stands here has no rule of its own. Everything outside the core set is taken apart by torch's table anyway.
"""

from __future__ import annotations

import torch
from torch._decomp import get_decompositions

from precast.ops.decompositions import DecompositionTable

_aten = torch.ops.aten

# What it becomes, and why it is not worth a rule.
TAKEN_APART = {
    _aten.col2im.default: "index_put over windows: one scatter",
    _aten.grid_sampler_2d.default: "arithmetic and index, which fuse into one loop over the result",
}


def core_operators_taken_apart() -> DecompositionTable:
    """The table for the operators above."""
    return dict(get_decompositions(list(TAKEN_APART)))
