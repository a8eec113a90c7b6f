"""Tensor subclasses outside, plain tensors in the graph.

Before: ``f(Wrapper(a, b)) -> Wrapper(c, d)``
After:  ``graph(a, b) -> (c, d)``, with wrappers taken apart before the graph and put together after it

Autograd sees the wrappers: gradients of wrappers are wrappers, and their own formulas are what is traced.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from precast.autograd.boxing import BoxedCall
from precast.errors import CaptureError
from precast.graph.opened_objects import is_wrapper
from precast.trace.record import FlatFunction


@dataclass(frozen=True)
class WrapperLayout:
    """How a wrapper is made of inner tensors; ``inner[i]`` is the layout of the inner tensor ``names[i]``.

    ``size`` and ``stride`` are None where they are those of the inner tensors, which may change from call to call.
    """

    kind: type[torch.Tensor]
    names: tuple[str, ...]
    inner: "tuple[WrapperLayout | None, ...]"
    context: Any
    size: torch.Size | None
    stride: tuple[int, ...] | None

    def build(self, plain: Iterator[Any]) -> torch.Tensor:
        """A wrapper around the next plain tensors."""
        inner = {
            name: next(plain) if layout is None else layout.build(plain)
            for name, layout in zip(self.names, self.inner, strict=True)
        }
        first = inner[self.names[0]]
        size, stride = (first.size(), first.stride()) if self.size is None else (self.size, self.stride)
        made: torch.Tensor = self.kind.__tensor_unflatten__(inner, self.context, size, stride)  # type: ignore[attr-defined]
        return made


Layout = WrapperLayout | None
"""How one value is made of plain ones; ``None`` for a value that is plain itself."""


def layout_of(value: Any) -> Layout:
    if not is_wrapper(value):
        return None
    names, context = value.__tensor_flatten__()
    inner = tuple(layout_of(getattr(value, name)) for name in names)
    # Where none inside is symbolic, the size of a ragged dimension is a number of the subclass's own.
    is_static = not any(getattr(value, name)._has_symbolic_sizes_strides for name in names)
    if not is_static and any(str(getattr(value, name).shape) != str(value.shape) for name in names):
        raise CaptureError(
            f"A {type(value).__name__} has dynamic sizes that are not those of the tensors inside of it.",
            why="only the subclass knows how its sizes follow from theirs",
            fix="Compile with dynamic=False.",
        )
    size, stride = (value.size(), tuple(value.stride())) if is_static else (None, None)
    return WrapperLayout(type(value), tuple(names), inner, context, size, stride)


def take_apart(values: Sequence[Any], layouts: Sequence[Layout]) -> list[Any]:
    """The plain values that ``values`` are made of, by layouts that they have."""
    plain: list[Any] = []
    for value, layout in zip(values, layouts, strict=True):
        if layout is None:
            plain.append(value)
        else:
            assert type(value) is layout.kind, f"expected a {layout.kind.__name__}, got a {type(value).__name__}"
            plain += take_apart([getattr(value, name) for name in layout.names], layout.inner)
    return plain


def has_layout(value: Any, layout: Layout) -> bool:
    """Whether a value is made as ``layout`` tells; a plain one, if that is None."""
    found = layout_of(value)
    if found is None or layout is None:
        return found is layout
    return (found.kind, found.names, found.context) == (layout.kind, layout.names, layout.context) and all(
        has_layout(getattr(value, name), inner) for name, inner in zip(layout.names, layout.inner, strict=True)
    )


def put_together(plain: Sequence[Any], layouts: Sequence[Layout]) -> list[Any]:
    """Values of these layouts, made of plain ones."""
    remaining = iter(plain)
    return [next(remaining) if layout is None else layout.build(remaining) for layout in layouts]


def plain_count(layouts: Sequence[Layout]) -> int:
    """Of how many plain values these layouts are made."""
    return sum(1 if layout is None else plain_count(layout.inner) for layout in layouts)


def by_value(plain: Sequence[Any], layouts: Sequence[Layout]) -> list[list[Any]]:
    """The plain values grouped by the value that they are part of."""
    remaining = iter(plain)
    return [[next(remaining) for _ in range(plain_count([layout]))] for layout in layouts]


@dataclass
class PlainFunction:
    """A flat function over the plain tensors inside its inputs; notes the layouts of its outputs when it runs."""

    function: FlatFunction
    inputs: tuple[Layout, ...]
    needs_grad: tuple[bool, ...]
    outputs: list[Layout] = field(default_factory=list)

    def __call__(self, *plain: Any) -> list[Any]:
        values = put_together(plain, self.inputs)
        for value, layout, needs_grad in zip(values, self.inputs, self.needs_grad, strict=True):
            if layout is not None:
                value.requires_grad_(needs_grad)
        results = list(self.function(*values))
        self.outputs = [layout_of(result) for result in results]
        return take_apart(results, self.outputs)


def over_wrappers(graph: BoxedCall, inputs: Sequence[Layout], outputs: Sequence[Layout]) -> BoxedCall:
    """A compiled graph of plain tensors as a call over wrappers.

    The last values passed are those that ``inputs`` describes, the first ones returned those that ``outputs``
    describes; all others are plain.
    """
    if not any(inputs) and not any(outputs):
        return graph
    count = plain_count(outputs)

    def call(values: list[Any]) -> Sequence[Any]:
        described = len(values) - len(inputs)
        results = graph(values[:described] + take_apart(values[described:], inputs))
        return [*put_together(results[:count], outputs), *results[count:]]

    return call
