"""Converts models to opsets older than torchlib's, where their operators have equivalents.

Before: ``opset 18: ReduceMean(x, axes=[1], noop_with_empty_axes=0); Split(x, num_outputs=2)``
After:  ``opset 16: ReduceMean(x){axes=[1]}; Split(x)``

Onnx's own converter cannot downgrade Split, and leaves attributes that older operators do not have.
"""

import onnx
import onnx_ir as ir

from precast.onnx.graphs import all_nodes
from precast.onnx.optimize import renumber

OLDEST_OPSET = 16


def lower(model: ir.Model, opset: int) -> None:
    """Change ``model`` in place to an older opset; refuse where an operator has no equivalent in it."""
    present = model.opset_imports[""]
    if opset >= present:
        return
    own = [node for node in all_nodes(model) if node.domain == "" and onnx.defs.has(node.op_type)]
    renumber(model, opset, rewritten={node for node in own if _rewrite(node, present, opset)})


def _rewrite(node: ir.Node, present: int, opset: int) -> bool:
    """Rewrite a node in older terms; returns whether it is now in the older form, where the forms differ."""
    newer = onnx.defs.get_schema(node.op_type, present)
    try:
        older = onnx.defs.get_schema(node.op_type, opset)
    except onnx.defs.SchemaError:
        return False
    is_other_form = False
    if "axes" in older.attributes and len(node.inputs) == 2 and node.inputs[1] is not None:
        axes = ir.convenience.get_const_tensor(node.inputs[1])
        if axes is not None:
            node.attributes["axes"] = ir.AttrInt64s("axes", axes.numpy().tolist())
            node.resize_inputs(1)
            is_other_form = True
    if node.op_type == "Split" and "num_outputs" in node.attributes and _is_even(node):
        node.attributes.pop("num_outputs")
    for name in [name for name in node.attributes if name not in older.attributes]:
        default = newer.attributes[name].default_value if name in newer.attributes else None
        if default is not None and _value(default) == node.attributes[name].value:
            node.attributes.pop(name)
    return is_other_form and node.attributes.keys() <= older.attributes.keys()


def _value(attribute: onnx.AttributeProto) -> object:
    value = onnx.helper.get_attribute_value(attribute)
    return value.decode() if isinstance(value, bytes) else value


def _is_even(node: ir.Node) -> bool:
    """Whether a split is into equal parts, as a split without sizes was in older opsets."""
    shape, axis = node.inputs[0].shape if node.inputs[0] is not None else None, node.attributes.get_int("axis", 0)
    size = shape[axis] if shape is not None else None
    return isinstance(size, int) and size % len(node.outputs) == 0
