"""Which operators are decomposed before native code is made of them.

What has a rule of its own stays whole; of the rest, whatever can be decomposed is.

Operators of the Core ATen set that are decomposed before lowering: their parts have rules, and fuse.

What stands here has no rule of its own. Everything outside the core set is decomposed by torch's table anyway.

Elementwise operators that are decomposed are laid out in memory as the whole operator's result would.

Before::

    logaddexp(x, y)      x and y are laid out differently: eager looks at both, and its parts each at their own operands

After::

    parts.permute(…).contiguous().permute(…)
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps

import torch
from torch import Tensor
from torch._decomp import get_decompositions

from precast.native.decompositions.own import CHECKED_DECOMPOSITIONS, OWN_DECOMPOSITIONS, foreach_decompositions
from precast.native.rules.registry import lowered_operators
from precast.ops.cost import size_hint
from precast.ops.decompositions import DecompositionTable, core_decompositions, eager_strides


def lying_like_eager(rule: Callable[..., object]) -> Callable[..., object]:
    """The rule, with its result laid out as eager does."""

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

# What it becomes, and why it is not worth a rule.
TAKEN_APART = {
    _aten.col2im.default: "index_put over windows: one scatter",
    _aten.grid_sampler_2d.default: "arithmetic and index, which fuse into one loop over the result",
}


def core_operators_taken_apart() -> DecompositionTable:
    """The table for the operators above."""
    return dict(get_decompositions(list(TAKEN_APART)))


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
