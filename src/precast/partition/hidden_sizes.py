"""Sizes that the backward speaks of and that nothing it is given shows by itself.

Before: the forward saves ``f32[s0*s1]`` alone, of which nobody can tell ``s0`` and ``s1``.
After:  it saves these two numbers, too.
"""

from collections.abc import Collection, Iterable

import sympy
import torch
from torch import fx

from precast.partition.classify import JointGraph, is_symbolic

Number = torch.SymInt | torch.SymFloat | torch.SymBool


def hidden_sizes(joint: JointGraph, given: Collection[fx.Node], computed: Iterable[fx.Node]) -> list[fx.Node]:
    """The numbers of the forward that a backward must be given beside ``given``, to know all sizes."""
    read = (*given, *joint.tangents)
    known = {symbol for node in read for symbol in _shown(node)}
    hidden = {symbol for node in (*read, *computed) for symbol in _symbols(node)} - known
    if not hidden:
        return []
    found: dict[str, fx.Node] = {}
    for node in joint.in_order(joint.forward):
        symbols = _symbols(node) if is_symbolic(node) else set()
        if len(symbols) == 1 and symbols <= hidden and str(node.meta["val"]) in symbols:
            found.setdefault(symbols.pop(), node)
    return [node for node in found.values() if node not in given]


def _shown(node: fx.Node) -> set[str]:
    """Symbols that are alone in a size, times a number and plus one: they can be told from that."""
    expressions = (number.node.expr for number in _numbers(node))
    alone = ((each, *each.free_symbols) for each in expressions if len(each.free_symbols) == 1)
    return {symbol.name for each, symbol in alone if each.is_polynomial(symbol) and sympy.degree(each, symbol) == 1}


def _symbols(node: fx.Node) -> set[str]:
    return {name for number in _numbers(node) for name in _names(number)}


def _names(number: Number) -> set[str]:
    return {symbol.name for symbol in number.node.expr.free_symbols}


def _numbers(node: fx.Node) -> list[Number]:
    value = node.meta.get("val")
    values = value if isinstance(value, tuple | list) else (value,)
    sizes = [size for each in values for size in (each.shape if isinstance(each, torch.Tensor) else (each,))]
    return [size for size in sizes if isinstance(size, Number)]
