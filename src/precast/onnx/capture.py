"""Captures a model as a program all of whose operators have a rule: the step before translation.

Recurrent layers are preserved during capture.

Before: ``gru(x[batch, time, 6])`` is unrolled step by step, which specializes ``time``
After:  ``gru(x[batch, time, 6])`` is one node; ONNX has an operator for it

Torch would infer the result sizes of ``gru`` by running its decomposition. Here they are computed directly.

Symbolic capture needs no data: a model on the meta device will do.
"""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import fx
from torch._C import DispatchKey
from torch._decomp import decomposition_table, meta_table
from torch._dispatch.python import enable_python_dispatcher
from torch._ops import OperatorBase, OpOverload
from torch.utils import _pytree as pytree

from precast.errors import InputValueError, SymbolicShapeError
from precast.export import ExportedProgram, export, refine_dynamic_shapes_from_suggested_fixes
from precast.export.preserved_ops import preserved
from precast.onnx.adapters import bind, signature_of
from precast.onnx.rules.registry import RuleTable
from precast.onnx.translate import untranslatable
from precast.ops.decompositions import core_decompositions
from precast.trace.capture.dynamic_shapes import Frozen, TensorDims, normalize_dynamic_shapes
from precast.trace.capture.ones_in_examples import is_free
from precast.trace.capture.symbolic import symbolic_trace
from precast.trace.control_flow import WritingRegionError, whole_regions

_GRU, _LSTM = torch.ops.aten.gru.input, torch.ops.aten.lstm.input


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


def _lstm_sizes(
    x: torch.Tensor, start: Sequence[torch.Tensor], *options: Any
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    hidden, cell = start
    return *_gru_sizes(x, hidden, *options), torch.empty_like(cell)


def _whole_operators(module: torch.nn.Module) -> dict[OpOverload, Callable[..., Any]]:
    """The recurrent operators that tracing would unroll, and functions that compute their sizes."""
    children = list(module.modules())
    found: dict[OpOverload, Callable[..., Any]] = {}
    if any(isinstance(child, torch.nn.GRU) for child in children):
        found[_GRU] = _gru_sizes
    if any(isinstance(child, torch.nn.LSTM) and child.proj_size for child in children):
        found[_LSTM] = _lstm_sizes
    return found


@contextmanager
def whole_recurrent_layers(module: torch.nn.Module) -> Iterator[None]:
    """While active, tracing records recurrent layers as one node; without such layers, nothing changes."""
    if not (operators := _whole_operators(module)):
        yield
        return
    with preserved(list(operators)), enable_python_dispatcher():
        for operator, sizes in operators.items():
            operator.py_kernels[DispatchKey.Meta] = sizes
            operator._dispatch_cache.clear()
            meta_table[operator] = sizes
        try:
            yield
        finally:
            for operator in operators:
                del meta_table[operator]


def capture_aten(
    model: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    dynamic_shapes: Any,
    rules: RuleTable,
) -> ExportedProgram:
    """Export the model, and decompose operators without a rule, where possible."""
    module = as_module(model)

    def run(dynamic_shapes: Any) -> ExportedProgram:
        try:
            with whole_regions():
                return export(module, args, kwargs, dynamic_shapes=dynamic_shapes)
        except WritingRegionError:
            # Functions of ONNX have no side effects.
            return export(module, args, kwargs, dynamic_shapes=dynamic_shapes)

    with torch.no_grad(), whole_recurrent_layers(module):
        try:
            exported = run(dynamic_shapes)
        except SymbolicShapeError as error:
            exported = run(_corrected(error, dynamic_shapes))
        return translatable(exported, rules)


def _corrected(error: SymbolicShapeError, dynamic_shapes: Any) -> Any:
    """What the program allows in place of what was declared, as torch's exporter does; a warning says so."""
    try:
        corrected = refine_dynamic_shapes_from_suggested_fixes(str(error), dynamic_shapes)
    except InputValueError:
        # It may work with sizes of 1 only, for which there is no other specification.
        corrected = Frozen(dynamic_shapes, is_free)
    message = f"{error.what} The model is exported with what the program allows."
    warnings.warn(message, UserWarning, stacklevel=2)
    return corrected


def translatable(exported: ExportedProgram, rules: RuleTable) -> ExportedProgram:
    """The program, decomposed where rules are missing; operators with a rule are preserved."""
    if not any(untranslatable(exported.graph_module, rules)):
        return exported
    # What has a rule for real numbers alone is decomposed where it meets complex ones.
    missing = {node.target for node in untranslatable(exported.graph_module, rules)}
    kept = [op for op in rules.overloads() if op not in missing]
    exported = exported.run_decompositions(None, _preserve_ops=kept)
    tried: set[OperatorBase] = set()
    # A decomposition may contain the operator itself: each is tried once.
    while table := {op: rule for op, rule in _further(exported.graph_module, rules).items() if op not in tried}:
        exported = exported.run_decompositions(table, _preserve_ops=kept)
        tried |= table.keys()
    return exported


def _further(module: fx.GraphModule, rules: RuleTable) -> dict[OperatorBase, Callable[..., Any]]:
    """Decompositions beyond Core ATen, for operators that still have no rule."""
    missing = [node.target for node in untranslatable(module, rules)]
    known = decomposition_table | core_decompositions
    return {op: known[op] for op in missing if isinstance(op, OperatorBase) and op in known}


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
    """Trace the model symbolically; its ATen operators are then found by running the graph on shapes alone."""
    module = as_module(model)
    leaves = pytree.tree_leaves((tuple(args), dict(kwargs)))
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    described = normalize_dynamic_shapes(model, args, kwargs, dynamic_shapes)
    dims = tuple(tensor.dims for tensor in described if isinstance(tensor, TensorDims))
    traced = symbolic_trace(module, _concrete(model, args, kwargs))
    is_meta = any(tensor.is_meta for tensor in (*module.parameters(), *module.buffers(), *tensors))
    inputs = [tensor.to("meta") for tensor in tensors] if is_meta else tensors
    # Tensors that the program creates must be on the device of its weights.
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
