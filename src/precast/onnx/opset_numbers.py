"""Models under another opset number, where every operator in them means the same in both.

Before: ``opset 25: Gemm, Cast``
After:  ``opset 28: Gemm, Cast``; Cast was revised in 28, but only takes more types

Onnxscript converts models up to opset 25; the revisions since then have only added to what operators take.
"""

import onnx
import onnx_ir as ir
from onnx_ir.schemas import OpSignature

from precast.errors import OnnxError

Schema = onnx.defs.OpSchema


def renumber(model: ir.Model, opset: int) -> None:
    """Change ``model`` in place to say ``opset``; refuse where an operator in it is another one there."""
    present = model.opset_imports[""]
    own = [node for node in model.graph.all_nodes() if node.domain == ""]
    changed = sorted({node.op_type for node in own if not _means_the_same(node, present, opset)})
    if changed:
        raise OnnxError(
            f"The model cannot be written for opset {opset}.",
            why=f"{', '.join(changed)} is not the same there as in opset {present}",
            fix=f"Export with opset={min(present, opset)}.",
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
    return not newer.deprecated and _only_gained(older, newer) and _takes(after, node)


def _only_gained(older: Schema, newer: Schema) -> bool:
    """Whether the newer operator has the inputs of the older one, and its attributes with the same defaults."""
    added = [attribute for key, attribute in newer.attributes.items() if key not in older.attributes]
    return (
        [each.name for each in older.inputs] == [each.name for each in newer.inputs]
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
