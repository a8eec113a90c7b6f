"""The cost of ops: bytes of their values, bytes moved, floating-point operations.

Symbolic sizes count as their hint; reading it adds no guard.
"""

from collections.abc import Sequence
from math import prod

import torch
from torch import fx
from torch._ops import OpOverload
from torch.fx.node import Argument
from torch.utils.flop_counter import flop_registry

from precast.graph.nodes import tensor_of
from precast.ops.facts import Fact, facts_of, is_view, op_of, subgraphs_of

_aten = torch.ops.aten
# Torch's formulas lack these for the CPU, and, in some versions, grouped-query attention.
_ATTENTIONS = (
    _aten._scaled_dot_product_flash_attention_for_cpu,
    _aten._scaled_dot_product_flash_attention,
    _aten._scaled_dot_product_efficient_attention,
    _aten._scaled_dot_product_cudnn_attention,
)
_ATTENTION_BACKWARDS = (
    _aten._scaled_dot_product_flash_attention_for_cpu_backward,
    _aten._scaled_dot_product_flash_attention_backward,
    _aten._scaled_dot_product_efficient_attention_backward,
    _aten._scaled_dot_product_cudnn_attention_backward,
)
# These take ``[batch, rows, heads, depth]``, or all rows of a batch in one; torch's formulas fail on the latter.
_ROWS_FIRST = (_aten._flash_attention_forward, _aten._efficient_attention_forward)
_ROWS_FIRST_BACKWARDS = (_aten._flash_attention_backward, _aten._efficient_attention_backward)

# The assumed value of a data-dependent size, such as the number of nonzero elements.
UNKNOWN_SIZE = 1024


def size_hint(size: int | torch.SymInt) -> int:
    """Return ``size``, or the hint that a symbol was traced with."""
    if not isinstance(size, torch.SymInt):
        return size
    return int(size.node.hint) if size.node.has_hint() else UNKNOWN_SIZE


def elements_of(value: object) -> int:
    """Return the number of elements of a value, summed over the items of a tuple."""
    if isinstance(value, torch.Tensor):
        return prod(size_hint(size) for size in value.shape)
    return sum(elements_of(item) for item in value) if isinstance(value, tuple | list) else 0


def bytes_of(value: object) -> int:
    """Return the memory that a value spans according to its strides, so that an expanded tensor is small."""
    if isinstance(value, tuple | list):
        return sum(bytes_of(item) for item in value)
    if not isinstance(value, torch.Tensor):
        return 0
    if value.layout is not torch.strided:
        return elements_of(value) * value.itemsize
    extents = [(size_hint(size), size_hint(stride)) for size, stride in zip(value.shape, value.stride(), strict=True)]
    if any(size == 0 for size, _ in extents):
        return 0
    return (1 + sum((size - 1) * stride for size, stride in extents)) * value.itemsize


def bytes_moved(node: fx.Node) -> int:
    """Return the bytes an op reads and writes; a view moves none."""
    if is_view(node):
        return 0
    return bytes_of(node.meta.get("val")) + sum(bytes_of(operand.meta.get("val")) for operand in node.all_input_nodes)


def flops(node: fx.Node) -> int:
    """Return the floating-point operations of a node: by formula for matmul-like ops, one per element for others."""
    op = op_of(node)
    if not isinstance(op, OpOverload):
        return sum(flops(inside) for subgraph in subgraphs_of(node) for inside in subgraph.graph.nodes)
    facts = facts_of(node)
    if not facts.isdisjoint({Fact.VIEW, Fact.CREATION, Fact.COPY}):
        return 0
    if op.overloadpacket in _ATTENTIONS:
        return _attention_flops(node.args[:3], by_queries=1, by_values=1)
    if op.overloadpacket in _ATTENTION_BACKWARDS:
        return _attention_flops(node.args[1:4], by_queries=3, by_values=2)
    if op.overloadpacket in _ROWS_FIRST:
        return _attention_flops(node.args[:3], by_queries=1, by_values=1, rows=-3)
    if op.overloadpacket in _ROWS_FIRST_BACKWARDS:
        return _attention_flops(node.args[1:4], by_queries=3, by_values=2, rows=-3)
    formula = flop_registry.get(op.overloadpacket)
    if formula is None:
        return max(elements_of(value) for value in (node.meta.get("val"), *map(_value_of, node.all_input_nodes)))
    # Most formulas take shapes; hints avoid guards from comparing symbolic ones. A few take tensors instead.
    convert = _shapes_of if hasattr(formula, "__wrapped__") else _traced
    args = [convert(argument) for argument in node.args]
    kwargs = {name: convert(argument) for name, argument in node.kwargs.items()}
    return int(formula(*args, **kwargs, out_val=_hinted_shapes(_value_of(node))))


def _attention_flops(operands: Sequence[Argument], *, by_queries: int, by_values: int, rows: int = -2) -> int:
    """The FLOPs of so many products of the size queries x keys, and weights x values, for every query head."""
    query, key, value = (tensor_of(operand) for operand in operands if isinstance(operand, fx.Node))
    depth = by_queries * size_hint(query.shape[-1]) + by_values * size_hint(value.shape[-1])
    return 2 * prod(map(size_hint, query.shape[:-1])) * size_hint(key.shape[rows]) * depth


def _value_of(node: fx.Node) -> object:
    return node.meta.get("val")


def _shapes_of(argument: Argument) -> object:
    return _hinted_shapes(_value_of(argument)) if isinstance(argument, fx.Node) else argument


def _traced(argument: Argument) -> object:
    return _value_of(argument) if isinstance(argument, fx.Node) else argument


def _hinted_shapes(value: object) -> object:
    if isinstance(value, torch.Tensor):
        return [size_hint(size) for size in value.shape]
    return [_hinted_shapes(item) for item in value] if isinstance(value, tuple | list) else value
