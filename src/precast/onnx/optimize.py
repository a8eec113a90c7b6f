"""Brings a new model into its final form: functions inlined, the requested opset, optionally fewer nodes.

A model may be renumbered to another opset if every operator in it means the same in both.

Before: ``opset 25: Gemm, Cast``
After:  ``opset 28: Gemm, Cast``; Cast was revised in 28, but only takes more types

Onnxscript converts models up to opset 25; later revisions have only extended what operators accept.

Every value of a model, in subgraphs too, gets a unique name.

Before: ``y = If(p, then={val_3 = Sin(x)}); val_3 = Neg(y)``
After:  ``y = If(p, then={val_3_1 = Sin(x)}); val_3 = Neg(y)``

Onnx_ir's own pass lets a subgraph use a name that the outer graph defines later; onnxruntime does not.
"""

import logging
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import onnx
import onnx_ir as ir
import onnx_ir.passes.common as passes
from onnx_ir.schemas import OpSignature
from onnxscript import optimizer, rewriter
from onnxscript.rewriter import pattern
from onnxscript.rewriter.rules.common._no_op import rules as no_op_rules
from onnxscript.version_converter import _version_converter

from precast.errors import OnnxError
from precast.onnx.fuse import fuse_patterns
from precast.onnx.graphs import REGIONS, all_nodes, outermost_graphs
from precast.onnx.weights import missing_as_inputs
from precast.onnx.widen import make_types_valid

Schema = onnx.defs.OpSchema


def renumber(model: ir.Model, opset: int, *, rewritten: Collection[ir.Node] = ()) -> None:
    """Change ``model`` in place to declare ``opset``; refuse if an operator in it is different there.

    Nodes that were ``rewritten`` for it already have its form.
    """
    present = model.opset_imports[""]
    own = [node for node in all_nodes(model) if node.domain == ""]
    old = [node for node in own if node not in rewritten]
    changed = sorted({node.op_type for node in old if not _means_the_same(node, present, opset)})
    if changed:
        raise OnnxError(
            f"The model cannot be written for opset {opset}.",
            why=f"{', '.join(changed)} is not the same there as in opset {present}",
            fix=f"Export with opset={present}.",
        )
    for graph in outermost_graphs(model):
        graph.opset_imports[""] = opset
    model.ir_version = onnx.helper.OP_SET_ID_VERSION_MAP["ai.onnx", opset]
    for node in own:
        node.version = None


def _means_the_same(node: ir.Node, present: int, opset: int) -> bool:
    try:
        before, after = (onnx.defs.get_schema(node.op_type, number) for number in (present, opset))
    except onnx.defs.SchemaError:
        return False
    if before.since_version == after.since_version:
        return True
    older, newer = sorted((before, after), key=lambda schema: schema.since_version)
    knows_all = node.attributes.keys() <= after.attributes.keys() and len(node.inputs) <= after.max_input
    return not newer.deprecated and knows_all and _only_gained(older, newer) and _takes(after, node)


def _only_gained(older: Schema, newer: Schema) -> bool:
    """Whether the newer operator has the inputs of the older one, and its attributes with the same defaults."""
    added = [attribute for key, attribute in newer.attributes.items() if key not in older.attributes]
    names = [each.name for each in newer.inputs]
    return (
        [each.name for each in older.inputs] == names[: len(older.inputs)]
        and all(_default(newer, key) == _default(older, key) for key in older.attributes)
        and not any(attribute.required for attribute in added)
    )


def _default(schema: Schema, key: str) -> bytes | None:
    attribute = schema.attributes.get(key)
    return None if attribute is None else attribute.default_value.SerializeToString()


def _takes(schema: Schema, node: ir.Node) -> bool:
    """Whether the operator accepts the node's inputs, as far as their types are known."""
    pairs = zip(OpSignature.from_op_schema(schema).inputs, node.inputs, strict=False)
    return all(
        value is None or value.type is None or value.type in parameter.type_constraint.allowed_types
        for parameter, value in pairs
    )


def make_names_unique(model: ir.Model) -> None:
    """Change ``model`` in place; values of the outermost graph keep their names, those without one get one."""
    passes.NameFixPass()(model)
    for outermost in outermost_graphs(model):
        taken: dict[str, ir.Value] = {}
        for graph in (outermost, *outermost.subgraphs()):
            for value in _values(graph):
                assert value.name is not None, "names were given before"
                if taken.setdefault(value.name, value) is not value:
                    value.name = _free(value.name, taken)
                    taken[value.name] = value


def _values(graph: ir.Graph) -> Iterator[ir.Value]:
    yield from graph.inputs
    yield from graph.initializers.values()
    yield from (value for node in graph for value in node.outputs)


def _free(name: str, taken: dict[str, ir.Value]) -> str:
    number = 1
    while f"{name}_{number}" in taken:
        number += 1
    return f"{name}_{number}"


def finish(model: ir.Model, *, opset: int, optimize: bool) -> None:
    """Change ``model`` in place."""
    with missing_as_inputs(model):
        _finish(model, opset=opset, optimize=optimize)


def _finish(model: ir.Model, *, opset: int, optimize: bool) -> None:
    onnxscripts = passes.InlinePass(lambda function: function.domain != REGIONS)
    ir.passes.Sequential(onnxscripts, passes.RemoveUnusedNodesPass())(model)
    for graph in outermost_graphs(model):
        make_types_valid(graph, opset)
    with _quiet("onnxscript", "onnx_ir"):
        _convert(model, opset)
    if optimize:
        fold(model, opset=opset)
    without_calls = passes.RemoveUnusedFunctionsPass()  # type: ignore[no-untyped-call]
    unused = (passes.RemoveUnusedNodesPass(), without_calls, passes.RemoveUnusedOpsetsPass())
    ir.passes.Sequential(*unused, passes.OutputFixPass())(model)
    make_names_unique(model)


def _changes_nothing(neutral: float) -> Callable[..., bool]:
    """Whether a constant is exactly the neutral number, and adds no dimensions by broadcasting."""

    def check(context: Any, number: ir.Value, **_: Any) -> bool:
        constant = ir.convenience.get_const_tensor(number)
        return constant is not None and len(constant.shape) == 0 and bool(constant.numpy() == neutral)

    return check


def _identity(op: Any, x: Any, **_: Any) -> Any:
    return op.Identity(x)


_NEUTRAL = (
    (lambda op, x, number: op.Mul(x, number), 1.0),
    (lambda op, x, number: op.Mul(number, x), 1.0),
    (lambda op, x, number: op.Add(x, number), 0.0),
    (lambda op, x, number: op.Add(number, x), 0.0),
    (lambda op, x, number: op.Sub(x, number), 0.0),
    (lambda op, x, number: op.Div(x, number), 1.0),
)
# Onnxscript's own rules accept 1e-12 for zero and 1.000001 for one.
_INEXACT = {id(rule) for rule in no_op_rules}
_EXACT_RULES = (
    *(pattern.RewriteRule(find, _identity, _changes_nothing(neutral)) for find, neutral in _NEUTRAL),
    *(rule for rule in rewriter._DEFAULT_REWRITE_RULES if id(rule) not in _INEXACT),
)


def fold(model: ir.Model, *, opset: int) -> None:
    """Optimize ``model`` in place: fold constants, fuse patterns, remove nodes."""
    with _quiet("onnxscript", "onnx_ir"), patch.object(rewriter, "_DEFAULT_REWRITE_RULES", _EXACT_RULES):
        optimizer.optimize_ir(model, inline=False)
        fuse_patterns(model, opset=opset)
        passes.IdentityEliminationPass()(model)


def _convert(model: ir.Model, opset: int) -> None:
    """Convert to a newer opset, with onnxscript as far as it goes."""
    for reachable in range(opset, model.opset_imports[""], -1):
        try:
            # The public function inlines the model's functions.
            _version_converter.convert_version(model, reachable)
            break
        except ValueError:
            # Newer than onnxscript supports; it fails before it changes anything.
            continue
    renumber(model, opset)


@contextmanager
def _quiet(*names: str) -> Iterator[None]:
    """Suppress the libraries' messages about every node that they leave unchanged."""
    loggers = [logging.getLogger(name) for name in names]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
