"""Ops that torch would decompose by itself while tracing, kept whole."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import fx
from torch._C import DispatchKey
from torch._ops import OperatorBase, OpOverload

from precast.export.verifier import graphs_of
from precast.ops.decompositions import core_decompositions

_AUTOGRAD_KEYS = (
    DispatchKey.AutogradCPU,
    DispatchKey.AutogradCUDA,
    DispatchKey.AutogradMeta,
    DispatchKey.AutogradOther,
    DispatchKey.AutogradFunctionality,
)


def is_composite(op: object) -> bool:
    """Whether the op is defined by other ops, so that autograd and tracing see those."""
    return isinstance(op, OpOverload) and torch._C._dispatch_has_kernel_for_dispatch_key(
        op.name(), DispatchKey.CompositeImplicitAutograd
    )


def composite_ops_in(module: fx.GraphModule) -> set[OpOverload]:
    """The composite ops that the graph or a graph of its control flow calls, but for those that may return an alias."""
    return {node.target for _, graph in graphs_of(module) for node in graph.nodes if _is_pure_composite(node.target)}


def _is_pure_composite(op: object) -> bool:
    if not isinstance(op, OpOverload) or op._schema.is_mutable or not is_composite(op):
        return False
    return not any(result.alias_info for result in op._schema.returns)


class CustomDecompTable(dict[OperatorBase, Callable[..., Any]]):
    """Decompositions to be changed: what is deleted stays whole, also if it is an op that was not defined yet."""

    def __init__(self) -> None:
        super().__init__()
        self._deleted: set[OperatorBase] = set()
        self.materialize()

    def materialize(self) -> dict[OperatorBase, Callable[..., Any]]:
        """This table, with the composite ops that were defined since it was made."""
        found = [op for op in map(_overload, torch._C._dispatch_get_all_op_names()) if op is not None]
        composites = {op: _composite_kernel(op) for op in found if _is_pure_composite(op)}
        for op, rule in (composites | core_decompositions).items():
            if op not in self._deleted:
                self.setdefault(op, rule)
        return self

    def __delitem__(self, op: OperatorBase) -> None:
        super().__delitem__(op)
        self._deleted.add(op)

    def pop(self, op: OperatorBase, *default: Any) -> Any:
        self._deleted.add(op)
        return super().pop(op, *default)


def default_decompositions() -> CustomDecompTable:
    """A table that takes programs to the Core ATen set, to be changed: what is deleted from it stays whole.

    >>> table = default_decompositions()
    >>> del table[torch.ops.aten.linear.default]
    >>> torch.ops.aten.matmul.default in table
    True
    """
    return CustomDecompTable()


def _overload(name: str) -> OpOverload | None:
    namespace, _, rest = name.partition("::")
    packet, _, overload = rest.partition(".")
    found: object = getattr(getattr(getattr(torch.ops, namespace), packet, None), overload or "default", None)
    return found if isinstance(found, OpOverload) else None


@contextmanager
def preserved(ops: Iterable[OpOverload]) -> Iterator[None]:
    """While active, tracing records these ops instead of what they are made of."""
    composite = [op for op in ops if is_composite(op)]
    before = {op: dict(op.py_kernels) for op in composite}
    for op in composite:
        op.py_kernels[DispatchKey.CompositeImplicitAutograd] = _refuse
        op.py_kernels[DispatchKey.Meta] = _composite_kernel(op)
        op.py_kernels |= dict.fromkeys(_AUTOGRAD_KEYS, _below_autograd(op))
        op._dispatch_cache.clear()
    try:
        yield
    finally:
        for op, kernels in before.items():
            op.py_kernels.clear()
            op.py_kernels.update(kernels)
            op._dispatch_cache.clear()


def _refuse(*_: Any, **__: Any) -> Any:
    """What torch asks for a decomposition and takes as "there is none"."""
    return NotImplemented


def _composite_kernel(op: OpOverload) -> Callable[..., Any]:
    """How shapes are found: by what the op is made of."""

    def run(*args: Any, **kwargs: Any) -> Any:
        return op._op_dk(DispatchKey.CompositeImplicitAutograd, *args, **kwargs)

    return run


def _below_autograd(op: OpOverload) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        with torch._C._AutoDispatchBelowAutograd():
            return op(*args, **kwargs)

    return run
