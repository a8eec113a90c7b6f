"""Merge a batched GEMM by one and the same matrix into a single GEMM with a taller left operand.

Before::

    each = expand(weight, [8, 64, 32])          one matrix, broadcast eight times
    y    = bmm(x, each)                         x: 8×10×64

After::

    y    = view(mm(view(x, [80, 64]), select(each, 0, 0)), [8, 10, 32])

Torch creates such batches for linear layers with transposed inputs and weights that need no gradients. A GEMM for
each member of the batch would read and pack the matrix every time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload
from torch._subclasses import FakeTensor
from torch.fx.node import Argument

from precast.graph.nodes import copy_provenance, has_value, set_value, value_of
from precast.native.rules.sizes import to_index

_aten = torch.ops.aten
Size = int | torch.SymInt


def merge_products(module: fx.GraphModule) -> fx.GraphModule:
    """A copy in which such batches are single GEMMs; the module itself if there are none."""
    if not any(map(_has_one_matrix, module.graph.nodes)):
        return module
    graph = fx.Graph()
    graph.output(graph.graph_copy(module.graph, {}))
    for node in list(graph.nodes):
        if _has_one_matrix(node):
            _merge(graph, node)
    return fx.GraphModule(module, graph)


def _has_one_matrix(node: fx.Node) -> bool:
    """Whether the right operand is broadcast along the batch."""
    if node.target is not _aten.bmm.default or not all(map(_is_traced, (node, *node.args))):
        return False
    right = _tensor(node.args[1])
    return type(right.stride(0)) is int and right.stride(0) == 0 and right.shape[0] != 1


def _is_traced(argument: Argument) -> bool:
    return isinstance(argument, fx.Node) and has_value(argument) and isinstance(value_of(argument), FakeTensor)


def _tensor(argument: Argument) -> FakeTensor:
    assert isinstance(argument, fx.Node)
    value = value_of(argument)
    assert isinstance(value, FakeTensor)
    return value


def _merge(graph: fx.Graph, product: fx.Node) -> None:
    left, right = product.args
    source, result = _tensor(left), _tensor(product)
    sizes: Sequence[Any] = source.shape
    batch, height, depth = sizes
    width = result.shape[2]
    writer = _Writer(graph, product)
    with graph.inserting_before(product):
        rows = -1 if isinstance(batch * height, torch.SymInt) else batch * height
        tall, view = left, _aten.view.default
        if to_index(source.stride(0)) != to_index(source.stride(1)) * to_index(height):
            copied = ((batch, height, depth), (height * depth, depth, 1))
            tall = writer.call(_aten.clone.default, (left,), *copied, memory_format=torch.contiguous_format)
            view = _aten._unsafe_view.default
        strides = _tensor(tall).stride()[1:]
        tall = writer.call(view, (tall, [rows, writer.size(left, 2)]), (batch * height, depth), strides)
        matrix = writer.call(_aten.select.int, (right, 0, 0), (depth, width), _tensor(right).stride()[1:])
        merged = writer.call(_aten.mm.default, (tall, matrix), (batch * height, width), (width, 1))
        parts = [writer.size(left, 0), writer.size(left, 1), writer.size(right, 2)]
        parted = writer.call(_aten._unsafe_view.default, (merged, parts), tuple(result.shape), result.stride())
    product.replace_all_uses_with(parted)
    graph.erase_node(product)


class _Writer:
    """Adds calls that replace ``replaced``, with their traced values."""

    def __init__(self, graph: fx.Graph, replaced: fx.Node):
        self.graph, self.replaced = graph, replaced

    def call(
        self,
        target: OpOverload,
        arguments: tuple[Argument, ...],
        shape: Sequence[Size],
        strides: Sequence[Size],
        **keywords: Argument,
    ) -> fx.Node:
        made = self.graph.call_function(target, arguments, keywords)
        like = _tensor(self.replaced)
        with like.fake_mode:
            set_value(made, torch.empty_strided(tuple(shape), tuple(strides), dtype=like.dtype, device=like.device))
        copy_provenance(self.replaced, made)
        return made

    def size(self, tensor: Argument, dimension: int) -> Argument:
        """A size as an argument: a number, or a node that reads it."""
        size: Any = _tensor(tensor).shape[dimension]
        if isinstance(size, int):
            return size
        made = self.graph.call_function(_aten.sym_size.int, (tensor, dimension))
        set_value(made, size)
        return made
