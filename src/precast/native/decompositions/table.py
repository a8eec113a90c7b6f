"""The decomposition tables: which operators are decomposed before lowering.

Operators with a rule of their own are kept; of the rest, everything that can be decomposed is.

Operators of the Core ATen set without a rule are decomposed by the table below, since their parts have rules, and
fuse; operators outside the core set are decomposed by torch's table.

Decomposed elementwise operators keep the layout that eager gives the operator's result.

Before::

        logaddexp(x, y)      x and y have different strides: eager considers both, but each part only its own operands

After::

    parts.permute(…).contiguous().permute(…)
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps

import torch
from torch import Tensor
from torch._decomp import get_decompositions

from precast.native.decompositions.linear_algebra import LINEAR_ALGEBRA
from precast.native.decompositions.own import CHECKED_DECOMPOSITIONS, OWN_DECOMPOSITIONS, foreach_decompositions
from precast.native.rules.registry import lowered_operators
from precast.ops.cost import size_hint
from precast.ops.decompositions import DecompositionTable, core_decompositions, eager_strides


def laid_out_like_eager(rule: Callable[..., object]) -> Callable[..., object]:
    """The rule, with its result in eager's layout."""

    @wraps(rule)
    def rule_and_layout(*args: object, **kwargs: object) -> object:
        result = rule(*args, **kwargs)
        strides = eager_strides(result, args) if isinstance(result, Tensor) else None
        if not isinstance(result, Tensor) or strides is None:
            return result
        order = sorted(range(result.ndim), key=lambda dim: size_hint(strides[dim]), reverse=True)
        return result.permute(order).contiguous().permute([order.index(dim) for dim in range(result.ndim)])

    return rule_and_layout


_aten = torch.ops.aten

# What each becomes, and why it is not worth a rule.
DECOMPOSED_CORE = {
    _aten.col2im.default: "index_put over windows: one scatter",
    _aten.grid_sampler_2d.default: "arithmetic and index, which fuse into one loop over the result",
}


def decomposed_core_operators() -> DecompositionTable:
    """The decompositions of the operators above."""
    return dict(get_decompositions(list(DECOMPOSED_CORE)))


# Torch's table of core operators does not decompose these, but their parts have rules.
_ALSO_DECOMPOSED = [
    _aten._batch_norm_with_update_functional,
    _aten.addmv,
    _aten.as_strided_copy,
    _aten.batch_norm_backward,
    _aten.dist,
    _aten.ldexp,
    _aten.narrow_copy,
    _aten.permute_copy,
    _aten.rrelu_with_noise_backward,
    _aten.tril_indices,
    _aten.triu_indices,
    _aten.unbind_copy,
    _aten.view_copy,
]

# Their parts consider one operand each.
_LAID_OUT_BY_ALL_OPERANDS = [_aten.heaviside.default, _aten.logaddexp.default, _aten.logaddexp2.default]


class NativeDecompositions(DecompositionTable):
    """The table; copying or pickling it builds it again, since torch's rules cannot be pickled."""

    def __reduce__(self) -> tuple[Callable[[], DecompositionTable], tuple[()]]:
        return native_decompositions, ()


def native_decompositions() -> NativeDecompositions:
    """The table for the rules registered now."""
    also = {**decomposed_core_operators(), **get_decompositions(_ALSO_DECOMPOSED)}
    own = {**OWN_DECOMPOSITIONS, **CHECKED_DECOMPOSITIONS, **foreach_decompositions()}
    table: DecompositionTable = {**core_decompositions, **also, **own}
    table |= {operator: laid_out_like_eager(table[operator]) for operator in _LAID_OUT_BY_ALL_OPERANDS}
    kept = set(lowered_operators())
    return NativeDecompositions({operator: rule for operator, rule in table.items() if operator not in kept})


def standalone_decompositions() -> DecompositionTable:
    """The table for programs that run without torch: it also decomposes operators that would be eager fallbacks."""
    return {**native_decompositions(), **LINEAR_ALGEBRA}
