"""Dynamic sizes at a call: where each is read, and the values of expressions over them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import fx

from precast.errors import LoweringError
from precast.graph.nodes import has_value, value_of
from precast.native.call import SizeReader
from precast.native.loops.index import Index, Symbol
from precast.native.rules.sizes import to_index


def size_readers(nodes: Iterable[fx.Node]) -> dict[str, SizeReader[fx.Node]]:
    """For each size that can be read from one of the nodes' values, the simplest way to read it."""
    found: dict[str, SizeReader[fx.Node]] = {}
    for node in nodes:
        for dimension, number in _numbers(node):
            reader = _reader(node, dimension, to_index(number))
            if reader is not None and (reader.symbol not in found or _is_plainer(reader, found[reader.symbol])):
                found[reader.symbol] = reader
    return found


def _numbers(node: fx.Node) -> Iterable[tuple[int | None, torch.SymInt]]:
    value = value_of(node) if has_value(node) else None
    if isinstance(value, torch.SymInt):
        if is_known(value):
            yield None, value
    elif isinstance(value, torch.Tensor) and value.layout is torch.strided:
        sizes: Sequence[object] = value.shape
        for dimension, size in enumerate(sizes):
            if isinstance(size, torch.SymInt) and is_known(size):
                yield dimension, size


def is_known(size: torch.SymInt) -> bool:
    """Whether native code can compute the size from symbols."""
    try:
        to_index(size)
    except LoweringError:
        return False
    return True


def _reader(node: fx.Node, dimension: int | None, number: Index) -> SizeReader[fx.Node] | None:
    """Solve ``number = factor * size + offset`` for the size, if the number has this form."""
    match sorted(number.terms, key=lambda term: len(term[0])):
        case [((Symbol(name),), factor)]:
            return SizeReader(name, node, dimension, factor, 0)
        case [((), offset), ((Symbol(name),), factor)]:
            return SizeReader(name, node, dimension, factor, offset)
    return None


def _is_plainer(one: SizeReader[fx.Node], other: SizeReader[fx.Node]) -> bool:
    return (one.factor, one.offset) == (1, 0) != (other.factor, other.offset)
