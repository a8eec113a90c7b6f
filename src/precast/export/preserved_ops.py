"""Ops that torch would decompose by itself while tracing, kept whole."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import fx
from torch._C import DispatchKey
from torch._ops import OpOverload

from precast.export.verifier import graphs_of

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
    """The composite ops that the graph or a graph of its control flow calls."""
    return {node.target for _, graph in graphs_of(module) for node in graph.nodes if is_composite(node.target)}


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
