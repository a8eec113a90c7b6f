"""Desugars tensor subclasses: wrappers outside, plain tensors in the graph.

Before: ``f(Wrapper(a, b)) -> Wrapper(c, d)``
After:  ``graph(a, b) -> (c, d)``, with wrappers unwrapped before the graph and rewrapped after it

Autograd sees the wrappers: gradients of wrappers are wrappers, and their own formulas are traced.
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

    ``size`` and ``stride`` are None if they are dynamic: then they are those of the inner tensors.
    """

    kind: type[torch.Tensor]
    names: tuple[str, ...]
    inner: "tuple[WrapperLayout | None, ...]"
    context: Any
    size: torch.Size | None
    stride: tuple[int, ...] | None

    def build(self, plain: Iterator[Any]) -> torch.Tensor:
        """Build a wrapper around the next plain tensors."""
        inner = {
            name: next(plain) if layout is None else layout.build(plain)
            for name, layout in zip(self.names, self.inner, strict=True)
        }
        first = inner[self.names[0]]
        size, stride = (first.size(), first.stride()) if self.size is None else (self.size, self.stride)
        made: torch.Tensor = self.kind.__tensor_unflatten__(inner, self.context, size, stride)  # type: ignore[attr-defined]
        return made


Layout = WrapperLayout | None
"""How one value is made of plain ones; ``None`` for a plain value."""


def layout_of(value: Any) -> Layout:
    if not is_wrapper(value):
        return None
    names, context = value.__tensor_flatten__()
    inner = tuple(layout_of(getattr(value, name)) for name in names)
    # If no inner tensor is symbolic, a symbolic size is the subclass's own, for a ragged dimension.
    is_static = not any(getattr(value, name)._has_symbolic_sizes_strides for name in names)
    if not is_static and any(str(getattr(value, name).shape) != str(value.shape) for name in names):
        raise CaptureError(
            f"A {type(value).__name__} has dynamic sizes that are not those of the tensors inside of it.",
            why="only the subclass knows how its sizes follow from theirs",
            fix="Compile with dynamic=False.",
        )
    size, stride = (value.size(), tuple(value.stride())) if is_static else (None, None)
    return WrapperLayout(type(value), tuple(names), inner, context, size, stride)


def unwrap(values: Sequence[Any], layouts: Sequence[Layout]) -> list[Any]:
    """The plain values inside ``values``, which have these layouts."""
    plain: list[Any] = []
    for value, layout in zip(values, layouts, strict=True):
        if layout is None:
            plain.append(value)
        else:
            assert type(value) is layout.kind, f"expected a {layout.kind.__name__}, got a {type(value).__name__}"
            plain += unwrap([getattr(value, name) for name in layout.names], layout.inner)
    return plain


def has_layout(value: Any, layout: Layout) -> bool:
    """Whether a value has this layout; for None, whether it is plain."""
    found = layout_of(value)
    if found is None or layout is None:
        return found is layout
    return (found.kind, found.names, found.context) == (layout.kind, layout.names, layout.context) and all(
        has_layout(getattr(value, name), inner) for name, inner in zip(layout.names, layout.inner, strict=True)
    )


def rewrap(plain: Sequence[Any], layouts: Sequence[Layout]) -> list[Any]:
    """Values with these layouts, rewrapped from plain ones."""
    remaining = iter(plain)
    return [next(remaining) if layout is None else layout.build(remaining) for layout in layouts]


def plain_count(layouts: Sequence[Layout]) -> int:
    """The number of plain values in these layouts."""
    return sum(1 if layout is None else plain_count(layout.inner) for layout in layouts)


def by_value(plain: Sequence[Any], layouts: Sequence[Layout]) -> list[list[Any]]:
    """The plain values grouped by the value that they are part of."""
    remaining = iter(plain)
    return [[next(remaining) for _ in range(plain_count([layout]))] for layout in layouts]


@dataclass
class PlainFunction:
    """A flat function over the plain tensors inside its inputs; records the layouts of its outputs when it runs."""

    function: FlatFunction
    inputs: tuple[Layout, ...]
    needs_grad: tuple[bool, ...]
    outputs: list[Layout] = field(default_factory=list)

    def __call__(self, *plain: Any) -> list[Any]:
        values = rewrap(plain, self.inputs)
        for value, layout, needs_grad in zip(values, self.inputs, self.needs_grad, strict=True):
            if layout is not None:
                value.requires_grad_(needs_grad)
        results = list(self.function(*values))
        self.outputs = [layout_of(result) for result in results]
        return unwrap(results, self.outputs)


def over_wrappers(graph: BoxedCall, inputs: Sequence[Layout], outputs: Sequence[Layout]) -> BoxedCall:
    """A compiled graph over plain tensors as a call over wrappers.

    ``inputs`` are the layouts of the last values passed, ``outputs`` those of the first ones returned; all others are
    plain.
    """
    if not any(inputs) and not any(outputs):
        return graph
    count = plain_count(outputs)

    def call(values: list[Any]) -> Sequence[Any]:
        described = len(values) - len(inputs)
        results = graph(values[:described] + unwrap(values[described:], inputs))
        return [*rewrap(results[:count], outputs), *results[count:]]

    return call
