"""How operators on complex tensors are translated, whose numbers travel as pairs along a last dimension.

Before: ``mul(c64[3], f32[3])``                          ``unsqueeze(c64[3], 0)``
After:  ``mul(pairs, Concat(x, zeros))``, a complex rule  ``Concat(unsqueeze(real parts), unsqueeze(imaginary parts))``

Elementwise operators get all operands as pairs. Operators that only move numbers work on the parts one by one. Those
that make tensors out of nothing, and casts, get an imaginary part of zeros.
"""

from typing import Any

import torch
from torch import fx

from precast.ir.node_meta import has_value, value_of
from precast.onnx.opsets import integer, integers, op

_aten = torch.ops.aten
MOVERS = {
    _aten.alias, _aten.contiguous, _aten.copy, _aten.detach, _aten.diagonal, _aten.expand, _aten.flatten, _aten.gather,
    _aten.index, _aten.index_put, _aten.index_select, _aten.masked_fill, _aten.movedim, _aten.narrow, _aten.repeat,
    _aten.reshape, _aten.scatter, _aten.select, _aten.select_scatter, _aten.slice_scatter, _aten.split,
    _aten.split_with_sizes, _aten.squeeze, _aten.to, _aten._to_copy, _aten.unbind, _aten.unflatten, _aten.unsqueeze,
    _aten.where,
}  # fmt: skip
"""They give numbers of their operands, and compute nothing."""
_MAKERS = {
    _aten.to, _aten._to_copy, _aten.empty, _aten.full, _aten.new_empty, _aten.new_ones, _aten.new_zeros, _aten.ones,
    _aten.zeros,
}  # fmt: skip


def is_complex(node: fx.Node) -> bool:
    """Whether a node gives a complex tensor."""
    value = value_of(node) if has_value(node) else None
    return isinstance(value, torch.Tensor) and value.is_complex()


def takes_complex(node: fx.Node) -> bool:
    """Whether an operator gets a complex tensor or number."""
    return any(map(is_complex, node.all_input_nodes)) or any(isinstance(argument, complex) for argument in node.args)


def lacks_imaginary_part(node: fx.Node) -> bool:
    """Whether the rule of an operator gives the real part alone of its complex result."""
    packet = getattr(node.target, "overloadpacket", None)
    return packet in _MAKERS and is_complex(node) and not takes_complex(node)


def parts(x: Any) -> tuple[Any, Any]:
    """The real and the imaginary part."""
    return op.Gather(x, integer(0), axis=-1), op.Gather(x, integer(1), axis=-1)


def pair(real: Any, imaginary: Any) -> Any:
    return op.Concat(op.Unsqueeze(real, integers(-1)), op.Unsqueeze(imaginary, integers(-1)), axis=-1)


def as_pair(real: Any) -> Any:
    """A real tensor as a complex one."""
    return pair(real, op.CastLike(op.ConstantOfShape(op.Shape(real)), real))
