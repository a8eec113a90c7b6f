"""Finds inputs that lie in the same memory where one of them is written: a graph of values cannot show that."""

from collections.abc import Iterator, Sequence

import torch

from precast.ir.boundary import BoundaryFacts


def inputs_written_through_others(values: Sequence[object], boundary: BoundaryFacts) -> Iterator[tuple[int, int]]:
    """Pairs of an input that the program writes and another one that the write would change too."""
    for number in boundary.updated:
        for other, value in enumerate(values):
            if other != number and _may_overlap(values[number], value):
                yield number, other


def _may_overlap(left: object, right: object) -> bool:
    """Whether two strided tensors share memory and reach into each other's part of it.

    Interleaved columns count as overlapping, though no element is in both.
    """
    if not isinstance(left, torch.Tensor) or not isinstance(right, torch.Tensor):
        return False
    if not (left.layout is right.layout is torch.strided):
        return False
    if left.untyped_storage()._cdata != right.untyped_storage()._cdata or 0 in (left.numel(), right.numel()):
        return False
    return bool(left.storage_offset() < _end(right) and right.storage_offset() < _end(left))


def _end(tensor: torch.Tensor) -> int | torch.SymInt:
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    return tensor.storage_offset() + sum((size - 1) * stride for size, stride in steps) + 1
