"""Which operators kernels for GPUs compute; the others are torch's.

Threads of a GPU run in no order. Where elements meet, they may be added by atomic operations only if the operator of
torch on GPUs does so, too: others give the same result in every run.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from precast.artifact.dtypes import DTYPES
from precast.native.loops.program import Kernel, Step, Store, stores_of, values_of
from precast.native.loops.scalars import Apply, walk
from precast.native.targets.cuda.codegen.operations import is_known

_UNORDERED = ("aten.index_add.", "aten.scatter_add.", "aten.scatter_reduce.", "aten.scatter.", "aten.put.")
"""Operators that torch computes with atomic additions on GPUs."""
_ATOMIC = frozenset({"f32", "f64", "i32", "i64"})


def takes(operator: str, steps: Sequence[Step]) -> bool:
    """Whether kernels can be made of what a rule made of an operator."""
    return all(_takes(operator, step) for step in steps)


def _takes(operator: str, step: Step) -> bool:
    match step:
        case Kernel():
            return all(_is_possible(operator, store) for store in stores_of(step.body)) and all(
                is_known(value.operation, value.arguments[-1].dtype)
                for value in walk(*values_of(step.body))
                if isinstance(value, Apply)
            )
    return True


def _is_possible(operator: str, store: Store) -> bool:
    if store.combine is None:
        return True
    is_atomic = store.combine == "sum" and store.buffer.dtype in _ATOMIC and operator.startswith(_UNORDERED)
    # Whole numbers add up to the same in any order.
    is_exact = not DTYPES[store.buffer.dtype].is_floating
    return is_atomic and (is_exact or not torch.are_deterministic_algorithms_enabled())
