"""Limits the work of running a graph on fake tensors: a malicious file could keep it busy forever."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from precast.artifact.schema import damaged

MAX_PARTS = 100_000
"""The maximal number of tensors that an operator may return."""
CALLS_AT_LEAST, CALLS_FOR_EACH_NODE = 20_000, 1000


class Bounded(TorchDispatchMode):
    """While active, counts operators, and refuses those that return too many tensors."""

    supports_higher_order_operators = True

    def __init__(self, nodes: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._left = CALLS_AT_LEAST + CALLS_FOR_EACH_NODE * nodes

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        self._left -= 1
        if self._left < 0:
            raise damaged("the program runs too many operators", "no program of that many nodes needs them")
        if _returns_lists(func) and _largest_number((args, kwargs)) > MAX_PARTS:
            raise damaged(f"{func} would return too many tensors", f"at most {MAX_PARTS} are allowed")
        return func(*args, **(kwargs or {}))


def _returns_lists(func: Any) -> bool:
    schema = getattr(func, "_schema", None)
    return schema is not None and any(isinstance(each.type, torch.ListType) for each in schema.returns)


def _largest_number(arguments: Any) -> int:
    """The largest size or number among the arguments, an upper bound of the number of tensors an operator returns."""
    leaves = pytree.tree_leaves(arguments)
    sizes = [size for leaf in leaves if isinstance(leaf, torch.Tensor) for size in leaf.shape]
    return max((number for number in (*sizes, *leaves) if type(number) is int), default=0)
