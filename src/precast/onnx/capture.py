"""From a model to a program all of whose operators have a rule: the step before translation.

Keeps recurrent layers whole while they are captured.

Before: ``gru(x[batch, time, 6])`` is unrolled, one step after the other, and fixes ``time``
After:  ``gru(x[batch, time, 6])`` is one node; ONNX has an operator for it

Torch finds the sizes of what ``gru`` gives by running what it is made of. Here they are computed.

From a model to a program by symbolic tracing: no data is needed, and a model on the meta device will do.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import fx
from torch._C import DispatchKey
from torch._decomp import decomposition_table, meta_table
from torch._dispatch.python import enable_python_dispatcher
from torch._ops import OperatorBase
from torch.utils import _pytree as pytree

from precast.export import ExportedProgram, export
from precast.export.preserved_ops import preserved
from precast.onnx.adapters import bind, signature_of
from precast.onnx.rules.registry import RuleTable
from precast.onnx.translate import untranslatable
from precast.trace.capture.dynamic_shapes import TensorDims, normalize_dynamic_shapes
from precast.trace.capture.symbolic import symbolic_trace

_GRU = torch.ops.aten.gru.input


def _gru_sizes(
    x: torch.Tensor,
    start: torch.Tensor,
    weights: Sequence[torch.Tensor],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    width = start.shape[-1] * (2 if bidirectional else 1)
    return x.new_empty((*x.shape[:2], width)), torch.empty_like(start)


@contextmanager
def whole_recurrent_layers(module: torch.nn.Module) -> Iterator[None]:
    """While active, tracing records ``gru`` without looking inside; nothing changes for a module that has none."""
    if not any(isinstance(child, torch.nn.GRU) for child in module.modules()):
        yield
        return
    with preserved([_GRU]), enable_python_dispatcher():
        _GRU.py_kernels[DispatchKey.Meta] = _gru_sizes
        _GRU._dispatch_cache.clear()
        meta_table[_GRU] = _gru_sizes
        try:
            yield
        finally:
            del meta_table[_GRU]


def capture_aten(
    model: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    dynamic_shapes: Any,
    rules: RuleTable,
) -> ExportedProgram:
    """Export the model, and decompose the operators that have no rule, where that is possible."""
    module = as_module(model)
    with torch.no_grad(), whole_recurrent_layers(module):
        exported = export(module, args, kwargs, dynamic_shapes=dynamic_shapes)
        return translatable(exported, rules)


def translatable(exported: ExportedProgram, rules: RuleTable) -> ExportedProgram:
    """The program, decomposed as far as rules are missing; what has a rule stays whole."""
    if not any(untranslatable(exported.graph_module, rules)):
        return exported
    kept = list(rules.overloads())
    exported = exported.run_decompositions(None, _preserve_ops=kept)
    tried: set[OperatorBase] = set()
    # A decomposition may lead back to the operator itself: each is tried once.
    while table := {op: rule for op, rule in _further(exported.graph_module, rules).items() if op not in tried}:
        exported = exported.run_decompositions(table, _preserve_ops=kept)
        tried |= table.keys()
    return exported


def _further(module: fx.GraphModule, rules: RuleTable) -> dict[OperatorBase, Callable[..., Any]]:
    """Decompositions beyond those into Core ATen, of operators that are still without a rule."""
    missing = [node.target for node in untranslatable(module, rules)]
    return {op: decomposition_table[op] for op in missing if isinstance(op, OperatorBase) and op in decomposition_table}


def as_module(model: Callable[..., Any]) -> torch.nn.Module:
    """The model, or a module around the function, with the function's own signature."""
    if isinstance(model, torch.nn.Module):
        return model
    module = torch.nn.Module()
    module.forward = model
    return module


def capture_symbolic(
    model: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    dynamic_shapes: Any,
    rules: RuleTable,
) -> ExportedProgram:
    """Trace the model symbolically; the graph's operators are then found by running it on shapes alone."""
    module = as_module(model)
    leaves = pytree.tree_leaves((tuple(args), dict(kwargs)))
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    described = normalize_dynamic_shapes(model, args, kwargs, dynamic_shapes)
    dims = tuple(tensor.dims for tensor in described if isinstance(tensor, TensorDims))
    traced = symbolic_trace(module, _concrete(model, args, kwargs))
    is_meta = any(tensor.is_meta for tensor in (*module.parameters(), *module.buffers(), *tensors))
    inputs = [tensor.to("meta") for tensor in tensors] if is_meta else tensors
    # Tensors that the program makes itself must be where its weights are.
    place: AbstractContextManager[Any] = torch.device("meta") if is_meta else nullcontext()
    with torch.no_grad(), place:
        exported = export(traced, inputs, dynamic_shapes=dims if dynamic_shapes is not None else None)
        return translatable(exported, rules)


def _concrete(model: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    signature = signature_of(model)
    bound = bind(signature, args, kwargs)
    variadic = [p.name for p in signature.parameters.values() if p.kind is p.VAR_KEYWORD] if signature else []
    concrete = {key: value for key, value in bound.items() if key not in variadic}
    for name in variadic:
        concrete |= bound[name]
    return concrete
