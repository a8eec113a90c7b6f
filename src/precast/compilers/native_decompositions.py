"""Which operators are taken apart before native code is made of them.

What has a rule of its own stays whole; of the rest, whatever can be taken apart is.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch._decomp import get_decompositions

from precast.compilers.decomposed_strides import lying_like_eager
from precast.lower.checked_decompositions import CHECKED_DECOMPOSITIONS
from precast.lower.decomposed import core_operators_taken_apart
from precast.lower.foreach import foreach_decompositions
from precast.lower.own_decompositions import OWN_DECOMPOSITIONS
from precast.lower.registry import lowered_operators
from precast.ops.decompositions import DecompositionTable, core_decompositions

_aten = torch.ops.aten

# Torch's table of core operators leaves these whole, and their parts have rules.
_ALSO_TAKEN_APART = [
    _aten._batch_norm_with_update_functional,
    _aten.addmv,
    _aten.as_strided_copy,
    _aten.batch_norm_backward,
    _aten.dist,
    _aten.ldexp,
    _aten.narrow_copy,
    _aten.permute_copy,
    _aten.rrelu_with_noise_backward,
    _aten.unbind_copy,
    _aten.view_copy,
]

# Their parts look at one operand each.
_LAID_OUT_BY_ALL_OPERANDS = [_aten.heaviside.default, _aten.logaddexp.default, _aten.logaddexp2.default]


class NativeDecompositions(DecompositionTable):
    """The table, which is copied and pickled by making it again: torch's rules cannot be pickled."""

    def __reduce__(self) -> tuple[Callable[[], DecompositionTable], tuple[()]]:
        return native_decompositions, ()


def native_decompositions() -> NativeDecompositions:
    """The table for the rules there are now."""
    also = {**core_operators_taken_apart(), **get_decompositions(_ALSO_TAKEN_APART)}
    own = {**OWN_DECOMPOSITIONS, **CHECKED_DECOMPOSITIONS, **foreach_decompositions()}
    table: DecompositionTable = {**core_decompositions, **also, **own}
    table |= {operator: lying_like_eager(table[operator]) for operator in _LAID_OUT_BY_ALL_OPERANDS}
    kept = set(lowered_operators())
    return NativeDecompositions({operator: rule for operator, rule in table.items() if operator not in kept})
