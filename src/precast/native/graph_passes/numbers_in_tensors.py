"""Keep numbers that a graph reads from tensors in tensors, so that nothing synchronizes with Python.

Before::

    s = _local_scalar_dense(step)           a Python number
    c = 1 - 0.9 ** s
    y = x / c

After::

    t = 1 - 0.9 ** _to_copy(step, float64)  one element, as exact as Python's
    y = x / _to_copy(t, float32)

Optimizers count steps like this, and schedules set learning rates: each such number would split the graph.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import fx
from torch._subclasses import FakeTensor
from torch.fx.node import Argument
from torch.utils import _pytree as pytree

from precast.graph.nodes import copy_provenance, has_value, set_value, value_of

_aten = torch.ops.aten
_EXACT = torch.float64
_DTYPES = (torch.float32, torch.float64)
_ARITHMETIC: Mapping[Any, Any] = {
    operator.add: _aten.add.Tensor, operator.sub: _aten.sub.Tensor, operator.mul: _aten.mul.Tensor,
    operator.truediv: _aten.div.Tensor, operator.pow: _aten.pow.Tensor_Tensor, operator.neg: _aten.neg.default,
    torch.sym_max: _aten.maximum.default, torch.sym_min: _aten.minimum.default,
    torch.sym_sqrt: _aten.sqrt.default, torch._sym_sqrt: _aten.sqrt.default,  # type: ignore[attr-defined]
}  # fmt: skip
_COMPARISONS: Mapping[Any, Any] = {
    operator.eq: _aten.eq.Tensor, operator.ne: _aten.ne.Tensor, operator.lt: _aten.lt.Tensor,
    operator.le: _aten.le.Tensor, operator.gt: _aten.gt.Tensor, operator.ge: _aten.ge.Tensor,
}  # fmt: skip
_BINARY = (_aten.add.Tensor, _aten.sub.Tensor, _aten.mul.Tensor, _aten.div.Tensor)


def keep_numbers_in_tensors(module: fx.GraphModule) -> fx.GraphModule:
    """A copy in which such numbers are zero-dim tensors; the module itself if there are none."""
    if not any(_is_number(node) and node.target is _aten._local_scalar_dense.default for node in module.graph.nodes):
        return module
    graph = fx.Graph()
    graph.output(graph.graph_copy(module.graph, {}))
    writer = _Writer(graph)
    for node in list(graph.nodes):
        rule = _RULES.get(node.target)
        numbers = [each for each in (_compared(node) or node).all_input_nodes if _is_number(each)]
        if rule is None or not numbers or not (_compared(node) or _is_computed(node)):
            continue
        tensors = [writer.tensor(number) for number in numbers]
        if all(each is not None for each in tensors):
            rule(writer, node, dict(zip(numbers, tensors, strict=True)))
    for node in reversed(list(graph.nodes)):
        if (_is_number(node) or _is_comparison(node)) and not node.users:
            graph.erase_node(node)
    return fx.GraphModule(module, graph)


def _is_number(node: fx.Node) -> bool:
    return has_value(node) and isinstance(value_of(node), torch.SymFloat)


def _is_comparison(node: fx.Node) -> bool:
    return node.target in _COMPARISONS and any(_is_number(each) for each in node.all_input_nodes)


def _compared(node: fx.Node) -> fx.Node | None:
    """The comparison of numbers that an assertion checks."""
    condition = node.args[0] if node.target is _aten._assert_scalar.default else None
    return condition if isinstance(condition, fx.Node) and _is_comparison(condition) else None


def _is_computed(node: fx.Node) -> bool:
    """Whether a result's dtype, and those of the tensors it is computed from, are precise enough."""
    value = value_of(node) if has_value(node) else None
    operands = [value_of(each) for each in node.all_input_nodes if not _is_number(each)]
    if not isinstance(value, FakeTensor) or value.dtype not in _DTYPES or not value.is_cpu:
        return False
    # Operands of arithmetic are first converted to the result's dtype.
    is_cast = node.target in _BINARY
    return all(isinstance(each, FakeTensor) and (is_cast or each.dtype is value.dtype) for each in operands)


class _Writer:
    """Adds calls to a graph, and makes the tensor of each number once."""

    def __init__(self, graph: fx.Graph) -> None:
        self._graph = graph
        values = (value_of(node) for node in graph.nodes if has_value(node))
        self._mode = next(each.fake_mode for each in values if isinstance(each, FakeTensor))
        self._tensors: dict[fx.Node, fx.Node | None] = {}

    def call(self, before: fx.Node, target: Any, *args: Argument, **options: Any) -> fx.Node:
        with self._graph.inserting_before(before):
            made = self._graph.call_function(target, args, options)
        values, kept = pytree.tree_map_only(fx.Node, value_of, (args, options))
        with self._mode:
            set_value(made, target(*values, **kept))
        copy_provenance(before, made)
        return made

    def replace(self, node: fx.Node, made: fx.Node) -> None:
        node.replace_all_uses_with(made)
        self._graph.erase_node(node)

    def tensor(self, number: fx.Node) -> fx.Node | None:
        """One element with the value of a number; None if it cannot be computed with tensors."""
        if number not in self._tensors:
            self._tensors[number] = self._made(number)
        return self._tensors[number]

    def _made(self, number: fx.Node) -> fx.Node | None:
        if number.target is _aten._local_scalar_dense.default:
            return self._read(number)
        target = _ARITHMETIC.get(number.target)
        if target is None or number.kwargs:
            return None
        operands = [self.operand(number, each) for each in number.args]
        return None if None in operands else self.call(number, target, *operands)

    def operand(self, number: fx.Node, operand: Argument) -> fx.Node | None:
        """The tensor of one operand of a computed number."""
        if isinstance(operand, fx.Node):
            return self.tensor(operand) if _is_number(operand) else None
        if not isinstance(operand, int | float):
            return None
        return self.call(number, _aten.full.default, [], float(operand), dtype=_EXACT, device=torch.device("cpu"))

    def _read(self, number: fx.Node) -> fx.Node | None:
        (source,) = number.args
        assert isinstance(source, fx.Node), "a number is read from a tensor"
        value = value_of(source)
        if not isinstance(value, FakeTensor) or value.dtype not in _DTYPES or not value.is_cpu or value.numel() != 1:
            return None
        if value.dim():
            source = self.call(number, _aten.view.default, source, [])
        return self.cast(number, source, _EXACT)

    def cast(self, before: fx.Node, tensor: fx.Node, dtype: torch.dtype) -> fx.Node:
        value = value_of(tensor)
        assert isinstance(value, FakeTensor)
        return tensor if value.dtype is dtype else self.call(before, _aten._to_copy.default, tensor, dtype=dtype)


Tensors = Mapping[fx.Node, fx.Node | None]
"""The tensor of each number that a node reads."""


def _replace(writer: _Writer, node: fx.Node, tensors: Tensors, *args: Argument, target: Any, **options: Any) -> None:
    """Replace a node by a call of ``target`` with zero-dim tensors of the node's dtype in place of numbers."""
    dtype = value_of(node).dtype  # type: ignore[attr-defined]

    def exchanged(each: fx.Node) -> fx.Node:
        tensor = tensors.get(each)
        return each if tensor is None else writer.cast(node, tensor, dtype)

    with_tensors, kept = fx.map_arg((args, options), exchanged)
    writer.replace(node, writer.call(node, target, *with_tensors, **kept))


def _binary(writer: _Writer, node: fx.Node, tensors: Tensors) -> None:
    left, right = (_cast_operand(writer, node, each) for each in node.args)
    factor = node.kwargs.get("alpha", 1)
    if isinstance(factor, fx.Node) or factor != 1:
        right = writer.call(node, _aten.mul.Tensor, right, _cast(writer, node, tensors, factor))
    _replace(writer, node, tensors, left, right, target=node.target)


def _cast_operand(writer: _Writer, node: fx.Node, operand: Argument) -> Argument:
    if not isinstance(operand, fx.Node) or _is_number(operand):
        return operand
    return writer.cast(node, operand, value_of(node).dtype)  # type: ignore[attr-defined]


def _cast(writer: _Writer, node: fx.Node, tensors: Tensors, number: Argument) -> Argument:
    tensor = tensors.get(number) if isinstance(number, fx.Node) else None
    return number if tensor is None else writer.cast(node, tensor, value_of(node).dtype)  # type: ignore[attr-defined]


def _multiplied(combine: Any) -> Callable[[_Writer, fx.Node, Tensors], None]:
    """``source + number * first (* or /) second``, in eager's order."""

    def rule(writer: _Writer, node: fx.Node, tensors: Tensors) -> None:
        source, first, second = node.args
        scaled = writer.call(node, _aten.mul.Tensor, first, _cast(writer, node, tensors, node.kwargs["value"]))
        change = writer.call(node, combine, scaled, second)
        _replace(writer, node, tensors, source, change, target=_aten.add.Tensor)

    return rule


def _lerp(writer: _Writer, node: fx.Node, tensors: Tensors) -> None:
    _replace(writer, node, tensors, *node.args, target=_aten.lerp.Tensor)


def _scalar_tensor(writer: _Writer, node: fx.Node, tensors: Tensors) -> None:
    number = node.args[0]
    made = tensors[number] if isinstance(number, fx.Node) else None
    assert made is not None, "the number is kept in a tensor"
    made = writer.cast(node, made, value_of(node).dtype)  # type: ignore[attr-defined]
    writer.replace(node, writer.call(node, _aten.clone.default, made))


def _assert_scalar(writer: _Writer, node: fx.Node, _: Tensors) -> None:
    comparison = _compared(node)
    assert comparison is not None, "rules are asked for nodes that read numbers"
    operands = [writer.operand(node, each) for each in comparison.args]
    if None not in operands:
        holds = writer.call(node, _COMPARISONS[comparison.target], *operands)
        writer.replace(node, writer.call(node, _aten._assert_async.msg, holds, node.args[1]))


_RULES: Mapping[Any, Callable[[_Writer, fx.Node, Tensors], None]] = {
    **dict.fromkeys(_BINARY, _binary),
    _aten.addcdiv.default: _multiplied(_aten.div.Tensor),
    _aten.addcmul.default: _multiplied(_aten.mul.Tensor),
    _aten.lerp.Scalar: _lerp,
    _aten.scalar_tensor.default: _scalar_tensor,
    _aten._assert_scalar.default: _assert_scalar,
}
