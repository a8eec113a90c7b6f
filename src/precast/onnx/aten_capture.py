"""From a model to a program all of whose operators have a rule: the step before translation."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import fx
from torch._decomp import decomposition_table
from torch._ops import OperatorBase

from precast.export import ExportedProgram, export
from precast.ir.program import Program
from precast.onnx.recurrent_shapes import whole_recurrent_layers
from precast.onnx.rules import RuleTable
from precast.onnx.translate import untranslatable


def capture_aten(
    model: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    dynamic_shapes: Any,
    rules: RuleTable,
) -> Program:
    """Export the model, and take apart the operators that have no rule, where that is possible."""
    module = as_module(model)
    with torch.no_grad(), whole_recurrent_layers(module):
        exported = export(module, args, kwargs, dynamic_shapes=dynamic_shapes)
        return translatable(exported, rules).program


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
