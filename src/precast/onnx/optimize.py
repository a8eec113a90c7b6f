"""Brings a fresh model into its final form: functions inlined, the asked opset, on demand fewer nodes.

Models under another opset number, where every operator in them means the same in both.

Before: ``opset 25: Gemm, Cast``
After:  ``opset 28: Gemm, Cast``; Cast was revised in 28, but only takes more types

Onnxscript converts models up to opset 25; the revisions since then have only added to what operators take.

Gives every value of a model a name of its own, those of subgraphs included.

Before: ``y = If(p, then={val_3 = Sin(x)}); val_3 = Neg(y)``
After:  ``y = If(p, then={val_3_1 = Sin(x)}); val_3 = Neg(y)``

Onnx_ir's own pass lets a subgraph use a name that the outer graph uses further down; onnxruntime does not.
"""

import logging
from collections.abc import Collection, Iterator
from contextlib import contextmanager

import onnx
import onnx_ir as ir
import onnx_ir.passes.common as passes
from onnx_ir.schemas import OpSignature
from onnxscript import optimizer, version_converter

from precast.errors import OnnxError
from precast.onnx.fuse import fuse_patterns
from precast.onnx.weights import missing_as_inputs

Schema = onnx.defs.OpSchema


def renumber(model: ir.Model, opset: int, *, rewritten: Collection[ir.Node] = ()) -> None:
    """Change ``model`` in place to say ``opset``; refuse where an operator in it is another one there.

    Nodes that were ``rewritten`` for it have the form already.
    """
    present = model.opset_imports[""]
    own = [node for node in model.graph.all_nodes() if node.domain == ""]
    old = [node for node in own if node not in rewritten]
    changed = sorted({node.op_type for node in old if not _means_the_same(node, present, opset)})
    if changed:
        raise OnnxError(
            f"The model cannot be written for opset {opset}.",
            why=f"{', '.join(changed)} is not the same there as in opset {present}",
            fix=f"Export with opset={present}.",
        )
    model.opset_imports[""] = opset
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
    """Whether the operator takes the node's inputs, as far as their types are known."""
    pairs = zip(OpSignature.from_op_schema(schema).inputs, node.inputs, strict=False)
    return all(
        value is None or value.type is None or value.type in parameter.type_constraint.allowed_types
        for parameter, value in pairs
    )


def make_names_unique(model: ir.Model) -> None:
    """Change ``model`` in place; values of the outermost graph keep their names."""
    taken: dict[str, ir.Value] = {}
    for graph in _graphs(model):
        for value in _values(graph):
            assert value.name is not None, "names were given before"
            if taken.setdefault(value.name, value) is not value:
                value.name = _free(value.name, taken)
                taken[value.name] = value


def _graphs(model: ir.Model) -> Iterator[ir.Graph]:
    yield model.graph
    yield from (graph for graph in model.graph.subgraphs() if isinstance(graph, ir.Graph))


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
    ir.passes.Sequential(passes.InlinePass(), passes.RemoveUnusedNodesPass())(model)
    model.functions.clear()
    with _quiet("onnxscript", "onnx_ir"):
        _convert(model, opset)
    if optimize:
        fold(model, opset=opset)
    ir.passes.Sequential(
        passes.RemoveUnusedNodesPass(), passes.RemoveUnusedOpsetsPass(), passes.OutputFixPass(), passes.NameFixPass()
    )(model)
    make_names_unique(model)


def fold(model: ir.Model, *, opset: int) -> None:
    """Change ``model`` in place: constants folded, patterns recognized, fewer nodes."""
    with _quiet("onnxscript", "onnx_ir"):
        optimizer.optimize_ir(model, inline=False)
        fuse_patterns(model, opset=opset)
        passes.IdentityEliminationPass()(model)


def _convert(model: ir.Model, opset: int) -> None:
    """To a newer opset, by onnxscript as far as it goes."""
    for reachable in range(opset, model.opset_imports[""], -1):
        try:
            version_converter.convert_version(model, reachable)
            break
        except ValueError:
            # Newer than it knows; it says so before it changes anything.
            continue
    renumber(model, opset)


@contextmanager
def _quiet(*names: str) -> Iterator[None]:
    """Without the libraries' notes on every node that they leave as it is."""
    loggers = [logging.getLogger(name) for name in names]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
