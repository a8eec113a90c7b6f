"""Operators that cut a tensor into several: ``Split`` nodes, whose results need no sequence value."""

from collections.abc import Sequence
from typing import Any

import onnx_ir as ir
from onnxscript.function_libs.torch_lib.ops import core

from precast.onnx.opsets import op
from precast.onnx.rules import rule


def _split(x: Any, sizes: Sequence[Any], dim: int) -> tuple[Any, ...]:
    if len(sizes) == 1:
        return (op.Identity(x),)
    if all(isinstance(size, int) for size in sizes):
        lengths = op.Constant(value_ints=list(sizes))
    else:
        lengths = op.Concat(*[_as_vector(size) for size in sizes], axis=0)
    # Only one of the two may be in the file: the number of results is what recording needs to know.
    results = op.Split(x, lengths, axis=dim, num_outputs=len(sizes))
    results[0].producer().attributes.pop("num_outputs")
    return tuple(results)


def _as_vector(size: Any) -> Any:
    return op.Reshape(size, [-1]) if isinstance(size, ir.Value) else op.Constant(value_ints=[size])


@rule("aten::split_with_sizes", "aten::split_with_sizes_copy")
def split_with_sizes(x: Any, sizes: Sequence[Any], dim: int = 0) -> Any:
    return _split(x, sizes, dim)


@rule("aten::split.Tensor", "aten::split_copy.Tensor")
def split(x: Any, size: Any, dim: int = 0) -> Any:
    total = x.shape[dim]
    if not isinstance(total, int) or not isinstance(size, int):
        return core.aten_split(x, size, dim)
    return _split(x, [min(size, total - start) for start in range(0, total, size)] or [0], dim)


@rule("aten::chunk")
def chunk(x: Any, chunks: int, dim: int = 0) -> Any:
    total = x.shape[dim]
    if not isinstance(total, int):
        return core.aten_chunk(x, chunks, dim)
    return split(x, max(1, -(-total // chunks)), dim)


@rule("aten::unbind.int", "aten::unbind_copy.int")
def unbind(x: Any, dim: int = 0) -> Any:
    total = x.shape[dim]
    if not isinstance(total, int):
        return core.aten_unbind(x, dim)
    return tuple(op.Squeeze(part, [dim]) for part in _split(x, [1] * total, dim)) if total else ()
