"""From a model to a program by symbolic tracing: no data is needed, and a model on the meta device will do."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch.utils import _pytree as pytree

from precast.capture.dynamic_shapes import normalize_dynamic_shapes
from precast.capture.symbolic import symbolic_trace
from precast.export import export
from precast.ir.program import Program
from precast.onnx.aten_capture import as_module, translatable
from precast.onnx.input_adapter import bind, signature_of
from precast.onnx.rules import RuleTable


def capture_symbolic(
    model: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    dynamic_shapes: Any,
    rules: RuleTable,
) -> Program:
    """Trace the model symbolically; the graph's operators are then found by running it on shapes alone."""
    module = as_module(model)
    leaves = pytree.tree_leaves((tuple(args), dict(kwargs)))
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    described = normalize_dynamic_shapes(model, args, kwargs, dynamic_shapes)
    dims = tuple(tensor.dims for tensor in described if tensor is not None)
    traced = symbolic_trace(module, _concrete(model, args, kwargs))
    is_meta = any(tensor.is_meta for tensor in (*module.parameters(), *module.buffers(), *tensors))
    inputs = [tensor.to("meta") for tensor in tensors] if is_meta else tensors
    # Tensors that the program makes itself must be where its weights are.
    place: AbstractContextManager[Any] = torch.device("meta") if is_meta else nullcontext()
    with torch.no_grad(), place:
        exported = export(traced, inputs, dynamic_shapes=dims if dynamic_shapes is not None else None)
        return translatable(exported, rules).program


def _concrete(model: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    signature = signature_of(model)
    bound = bind(signature, args, kwargs)
    variadic = [p.name for p in signature.parameters.values() if p.kind is p.VAR_KEYWORD] if signature else []
    concrete = {key: value for key, value in bound.items() if key not in variadic}
    for name in variadic:
        concrete |= bound[name]
    return concrete
