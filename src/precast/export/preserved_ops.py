"""Preserves composite ops that torch would decompose while tracing."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import fx
from torch._C import DispatchKey
from torch._ops import OperatorBase, OpOverload
from torch._subclasses.fake_impls import op_implementations_dict

from precast.export.verifier import graphs_of
from precast.ops.decompositions import core_decompositions

_aten = torch.ops.aten
_AUTOGRAD_KEYS = (
    DispatchKey.AutogradCPU,
    DispatchKey.AutogradCUDA,
    DispatchKey.AutogradMeta,
    DispatchKey.AutogradOther,
    DispatchKey.AutogradFunctionality,
)


def is_composite(op: object) -> bool:
    """Whether the op is composite: defined by other ops, which autograd and tracing see instead."""
    return isinstance(op, OpOverload) and torch._C._dispatch_has_kernel_for_dispatch_key(
        op.name(), DispatchKey.CompositeImplicitAutograd
    )


def composite_ops_in(module: fx.GraphModule) -> set[OpOverload]:
    """The composite ops that a graph and its subgraphs call, except those that may return an alias."""
    return {node.target for _, graph in graphs_of(module) for node in graph.nodes if _is_pure_composite(node.target)}


def _is_pure_composite(op: object) -> bool:
    if not isinstance(op, OpOverload) or op._schema.is_mutable or not is_composite(op):
        return False
    return not any(result.alias_info for result in op._schema.returns)


class CustomDecompTable(dict[OperatorBase, Callable[..., Any]]):
    """A mutable table of decompositions; deleted operators are kept whole, even if they are defined later."""

    def __init__(self) -> None:
        super().__init__()
        self._deleted: set[OperatorBase] = set()
        self.materialize()

    def materialize(self) -> dict[OperatorBase, Callable[..., Any]]:
        """Return this table, including composite operators that were defined after it was created."""
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
    """Return the decompositions into the Core ATen operator set; operators that you delete from it are kept whole.

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
    """While active, tracing records these ops without decomposing them."""
    composite = [op for op in ops if is_composite(op)]
    # PyTorch's exporter removes this rule when it has decomposed a program.
    op_implementations_dict.setdefault(_aten.item.default, op_implementations_dict[_aten._local_scalar_dense.default])
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
    """What torch calls as a decomposition; the result means that there is none."""
    return NotImplemented


def _composite_kernel(op: OpOverload) -> Callable[..., Any]:
    """The kernel that computes the shapes of the result: the op's decomposition."""

    def run(*args: Any, **kwargs: Any) -> Any:
        return op._op_dk(DispatchKey.CompositeImplicitAutograd, *args, **kwargs)

    return run


def _below_autograd(op: OpOverload) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        with torch._C._AutoDispatchBelowAutograd():
            return op(*args, **kwargs)

    return run
