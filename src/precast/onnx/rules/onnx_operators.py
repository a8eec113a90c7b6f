"""ONNX operators that models call explicitly, through ``torch.onnx.ops``.

Before: ``onnx_symbolic._symbolic([x], "Twice", 1, attr_keys=["power"], attr_types=["i"], attr_pos=[[0, 1]], …)``
After:  ``mine::Twice(x, power=2)``
"""

from collections.abc import Iterator, Sequence
from typing import Any

import onnx_ir as ir
from onnxscript import evaluator

from precast.onnx.rules.opsets import op23
from precast.onnx.rules.registry import rule


@rule("onnx_symbolic::_symbolic")
def symbolic(inputs: Sequence[Any], op_type: str, onnx_dtype: int, **described: Any) -> Any:
    (result,) = _named_operator(inputs, op_type, [onnx_dtype], **described)
    return result


@rule("onnx_symbolic::_symbolic_multi_out")
def symbolic_multi_out(inputs: Sequence[Any], op_type: str, onnx_dtypes: Sequence[int], **described: Any) -> Any:
    return _named_operator(inputs, op_type, onnx_dtypes, **described)


def _named_operator(
    inputs: Sequence[Any],
    op_type: str,
    data_types: Sequence[int],
    *,
    domain: str = "",
    version: int | None = None,
    metadata_props_keys: Sequence[str] = (),
    metadata_props_values: Sequence[str] = (),
    shape: Any = None,
    shapes: Any = None,
    **attributes: Any,
) -> tuple[ir.Value, ...]:
    recorder: Any = evaluator.default()
    operands = list(inputs)
    while operands and operands[-1] is None:
        operands.pop()
    named = dict(_attributes(**attributes))
    results = recorder.call(op_type, *operands, outputs=len(data_types), domain=domain, **named)
    node = recorder.nodes[-1]
    node.version = version or (1 if domain else None)
    node.metadata_props.update(zip(metadata_props_keys, metadata_props_values, strict=True))
    for value, data_type in zip(results, data_types, strict=True):
        value.dtype = ir.DataType(data_type)
    return tuple(results)


def _attributes(
    *,
    attr_keys: Sequence[str],
    attr_types: Sequence[str],
    attr_pos: Sequence[Sequence[int]],
    attr_ints: Sequence[int],
    attr_floats: Sequence[float],
    attr_strs: Sequence[str],
) -> Iterator[tuple[str, Any]]:
    """The attributes, which torch keeps in one list per kind of value."""
    lists: dict[str, Sequence[Any]] = {"i": attr_ints, "f": attr_floats, "s": attr_strs}
    for key, kind, (start, end) in zip(attr_keys, attr_types, attr_pos, strict=True):
        values = list(lists[kind[0]][start:end])
        yield key, values if kind.endswith("s") and len(kind) > 1 else values[0]


@rule("onnx::RotaryEmbedding.opset23", since=23)
def rotary_embedding(
    x: Any,
    cos_cache: Any,
    sin_cache: Any,
    position_ids: Any = None,
    *,
    interleaved: bool = False,
    num_heads: int = 0,
    rotary_embedding_dim: int = 0,
) -> Any:
    return op23.RotaryEmbedding(
        x,
        cos_cache,
        sin_cache,
        position_ids,
        interleaved=int(interleaved),
        num_heads=num_heads,
        rotary_embedding_dim=rotary_embedding_dim,
    )


@rule("onnx::Attention.opset23", since=23)
def attention(*operands: Any, is_causal: bool = False, **attributes: Any) -> Any:
    return op23.Attention(*operands, is_causal=int(is_causal), **attributes)
