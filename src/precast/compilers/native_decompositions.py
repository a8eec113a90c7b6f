"""Which operators are taken apart before native code is made of them.

What has a rule of its own stays whole; of the rest, whatever can be taken apart is, unless torch's own kernel is so
much better that calling back is worth it.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch._decomp import get_decompositions

from precast.lower.decomposed import core_operators_taken_apart
from precast.lower.registry import lowered_operators
from precast.ops.decompositions import DecompositionTable, core_decompositions

_aten = torch.ops.aten

# Worth more as a call of torch's kernel than as loops.
_KEPT_WHOLE = {
    _aten._scaled_dot_product_flash_attention_for_cpu.default,
    _aten._scaled_dot_product_flash_attention_for_cpu_backward.default,
}
# In the core set, so that torch's table leaves them whole; their parts have rules.
_ALSO_TAKEN_APART = [
    _aten.native_layer_norm,
    _aten.native_layer_norm_backward,
    _aten.native_group_norm,
    _aten.native_group_norm_backward,
    _aten.addmv,
    _aten.select_scatter,
    _aten.slice_scatter,
    _aten.lift_fresh,
    _aten.detach,
]


class NativeDecompositions(DecompositionTable):
    """The table, which is copied and pickled by making it again: torch's rules cannot be pickled."""

    def __reduce__(self) -> tuple[Callable[[], DecompositionTable], tuple[()]]:
        return native_decompositions, ()


def native_decompositions() -> NativeDecompositions:
    """The table for the rules there are now."""
    also = {**core_operators_taken_apart(), **get_decompositions(_ALSO_TAKEN_APART)}
    table: DecompositionTable = {**core_decompositions, **also}
    kept = {*lowered_operators(), *_KEPT_WHOLE}
    return NativeDecompositions({operator: rule for operator, rule in table.items() if operator not in kept})
