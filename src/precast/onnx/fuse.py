"""Fuses hand-written patterns into single nodes.

Before: ``Mul(Mul(x, 0.5), Add(Erf(Div(x, 1.4142135)), 1.0))``
After:  ``Gelu(x)``

Likewise layer normalization, and from opset 23 on softmax attention. Constants must match the function's own exactly.
"""

import math
from collections.abc import Callable
from typing import Any

import onnx_ir as ir
from onnxscript.rewriter import pattern
from onnxscript.rewriter.rules.common import transpose_transpose_rule

from precast.onnx.graphs import all_nodes

_SQRT_HALF = math.sqrt(0.5)
_TANH_SCALE = math.sqrt(2 / math.pi)
_ANY_OF = pattern.OrValue
_FLOATS = (ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.FLOAT16, ir.DataType.BFLOAT16)
_SWAP_LAST = [0, 1, 3, 2]


def fuse_patterns(model: ir.Model, *, opset: int) -> None:
    """Change ``model`` in place; only operators of ``opset`` are used."""
    # Matching in every order of operands is slow: patterns are tried only if their central nodes occur.
    cores = {(node.op_type, _producer(node)) for node in all_nodes(model)}
    rules: list[pattern.RewriteRule] = []
    if opset >= 20 and cores & {("Erf", "Mul"), ("Erf", "Div")}:
        rules += _gelu_rules("none", _erf_gate)
    if opset >= 20 and ("Tanh", "Mul") in cores:
        rules += _gelu_rules("tanh", _tanh_gate)
    if ("Sqrt", "Add") in cores:
        rules += [_layer_norm_rule()]
    if opset >= 23 and cores & {("Softmax", name) for name in ("MatMul", "Mul", "Div", "Add")}:
        rules += _attention_rules()
    if rules and pattern.RewriteRuleSet(rules, commute=True).apply_to_model(model):
        pattern.RewriteRuleSet([_layer_norm_bias_rule()], commute=True).apply_to_model(model)
        pattern.RewriteRuleSet([transpose_transpose_rule]).apply_to_model(model)


def _producer(node: ir.Node) -> str:
    """The operator that computes a node's first input."""
    first = node.inputs[0] if node.inputs else None
    producer = first.producer() if first is not None else None
    return producer.op_type if producer is not None else ""


def _gelu_rules(approximate: str, gate: Callable[..., Any]) -> list[pattern.RewriteRule]:
    shapes: list[Callable[[Any, Any, Any], Any]] = [
        lambda op, x, gate: op.Mul(op.Mul(x, 0.5), gate),
        lambda op, x, gate: op.Mul(op.Mul(x, gate), 0.5),
        lambda op, x, gate: op.Mul(x, op.Mul(gate, 0.5)),
    ]
    return [_gelu_rule(approximate, gate, shape) for shape in shapes]


def _gelu_rule(approximate: str, gate: Callable[..., Any], shape: Callable[..., Any]) -> pattern.RewriteRule:
    def written_out(op: Any, x: Any) -> Any:
        return shape(op, x, gate(op, x))

    def fused(op: Any, x: Any) -> Any:
        return op.Gelu(x, approximate=approximate)

    return pattern.RewriteRule(written_out, fused, name=f"gelu_{approximate}")


def _erf_gate(op: Any, x: Any) -> Any:
    return op.Add(op.Erf(_ANY_OF([op.Div(x, math.sqrt(2)), op.Mul(x, _SQRT_HALF)])), 1.0)


def _tanh_gate(op: Any, x: Any) -> Any:
    cube = _ANY_OF([op.Pow(x, 3.0), op.Mul(op.Mul(x, x), x)])
    return op.Add(op.Tanh(op.Mul(op.Add(x, op.Mul(cube, 0.044715)), _TANH_SCALE)), 1.0)


def _layer_norm_rule() -> pattern.RewriteRule:
    def written_out(op: Any, x: Any, scale: Any, epsilon: Any) -> Any:
        deviation = op.Sub(x, op.ReduceMean(x, [-1], keepdims=1))
        square = _ANY_OF([op.Mul(deviation, deviation), op.Pow(deviation, 2.0)])
        spread = op.Sqrt(op.Add(op.ReduceMean(square, [-1], keepdims=1), epsilon))
        normalized = _ANY_OF([op.Div(deviation, spread), op.Mul(deviation, op.Reciprocal(spread))])
        return op.Mul(normalized, scale)

    def is_layer_norm(_: Any, x: ir.Value, scale: ir.Value, epsilon: ir.Value, **__: Any) -> bool:
        return x.dtype in _FLOATS and _is_vector_along(scale, x) and _number(epsilon) is not None

    def fused(op: Any, x: Any, scale: Any, epsilon: Any, **_: Any) -> Any:
        return op.LayerNormalization(x, scale, axis=-1, epsilon=_number(epsilon))

    return pattern.RewriteRule(written_out, fused, is_layer_norm, name="layer_norm")


def _layer_norm_bias_rule() -> pattern.RewriteRule:
    def written_out(op: Any, x: Any, scale: Any, bias: Any) -> Any:
        return op.Add(op.LayerNormalization(x, scale, _outputs=["normalized"], _allow_other_attributes=True), bias)

    def is_bias(_: Any, x: ir.Value, bias: ir.Value, **__: Any) -> bool:
        return _is_vector_along(bias, x)

    def fused(op: Any, x: Any, scale: Any, bias: Any, normalized: ir.Value) -> Any:
        node = normalized.producer()
        assert node is not None, "it was matched as the result of a node"
        return op.LayerNormalization(x, scale, bias, **node.attributes)

    return pattern.RewriteRule(written_out, fused, is_bias, name="layer_norm_bias")


def _attention_rules() -> list[pattern.RewriteRule]:
    return [_attention_rule(scaled, is_masked) for is_masked in (True, False) for scaled in ("Mul", "Div", "")]


def _attention_rule(scaled: str, is_masked: bool) -> pattern.RewriteRule:
    """``Softmax(query @ keys * scale + mask) @ value``, where ``keys`` are already transposed."""

    def scores_of(op: Any, query: Any, keys: Any, scale: Any) -> Any:
        product = op.MatMul(query, keys)
        return getattr(op, scaled)(product, scale) if scaled else product

    def written_out(op: Any, query: Any, keys: Any, value: Any, scale: Any, mask: Any) -> Any:
        scores = scores_of(op, query, keys, scale)
        weights = op.Softmax(op.Add(scores, mask) if is_masked else scores, _outputs=["weights"])
        return op.MatMul(weights, value)

    def is_attention(
        _: Any, query: ir.Value, keys: ir.Value, value: ir.Value, weights: ir.Value, **rest: ir.Value | None
    ) -> bool:
        shapes = [each.shape for each in (query, keys, value)]
        node = weights.producer()
        axis = node.attributes.get_int("axis", -1) if node else None
        if any(shape is None or len(shape) != 4 for shape in shapes) or axis not in (-1, 3):
            return False
        heads = {shape[1] for shape in shapes if shape is not None}
        return len(heads) == 1 and _is_scale(rest.get("scale"), scaled) and _is_mask(rest.get("mask"), is_masked)

    def fused(op: Any, query: Any, keys: Any, value: Any, scale: Any = None, mask: Any = None, **_: Any) -> Any:
        number = _number(scale) if scaled else 1.0
        assert number is not None, "checked before"
        factor = 1 / number if scaled == "Div" else number
        key = op.Transpose(keys, perm=_SWAP_LAST)
        masks = [mask] if is_masked else []
        return op.Attention(query, key, value, *masks, scale=factor)

    return pattern.RewriteRule(written_out, fused, is_attention, name=f"attention_{scaled}_{is_masked}")


def _is_scale(scale: ir.Value | None, scaled: str) -> bool:
    return not scaled or bool(scale is not None and _number(scale))


def _is_mask(mask: ir.Value | None, is_masked: bool) -> bool:
    if not is_masked:
        return True
    return mask is not None and mask.shape is not None and 2 <= len(mask.shape) <= 4


def _is_vector_along(vector: ir.Value, x: ir.Value) -> bool:
    """Whether ``vector`` has one element for each along the last dimension of ``x``."""
    if vector.shape is None or x.shape is None or len(vector.shape) != 1 or not len(x.shape):
        return False
    return isinstance(vector.shape[0], int) and vector.shape[0] == x.shape[-1]


def _number(value: ir.Value) -> float | None:
    """The value of a constant of one element."""
    tensor = ir.convenience.get_const_tensor(value)
    return float(tensor.numpy().item()) if tensor is not None and tensor.size == 1 else None
