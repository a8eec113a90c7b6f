"""Which operators have GPU kernels; the others are eager fallbacks.

Threads of a GPU run in no order. Iterations that write the same element may use atomic additions only if torch's own
kernel does so too: the results of other operators are deterministic.
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


def takes(operator: str, steps: Sequence[Step], *, alone: bool = False) -> bool:
    """Whether kernels can run the steps that an operator was lowered to.

    Without torch, and so without fallbacks, more operators use atomic additions than in torch.
    """
    return all(_takes(operator, step, alone) for step in steps)


def _takes(operator: str, step: Step, alone: bool) -> bool:
    match step:
        case Kernel():
            return all(_is_possible(operator, store, alone) for store in stores_of(step.body)) and all(
                is_known(value.operation, value.arguments[-1].dtype)
                for value in walk(*values_of(step.body))
                if isinstance(value, Apply)
            )
    return True


def _is_possible(operator: str, store: Store, alone: bool) -> bool:
    if store.combine is None:
        return True
    is_atomic = store.combine == "sum" and store.buffer.dtype in _ATOMIC and (alone or operator.startswith(_UNORDERED))
    # Integer sums are the same in any order.
    is_exact = not DTYPES[store.buffer.dtype].is_floating
    return is_atomic and (is_exact or not torch.are_deterministic_algorithms_enabled())
