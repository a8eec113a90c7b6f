"""Running products, maxima and minima: one step after the other in a ``Scan``.

``Scan`` nodes out of a Python function that takes one step.
"""

from collections.abc import Callable, Sequence
from typing import Any

import onnx_ir as ir
from onnxscript import evaluator

from precast.onnx.recorder import RecordedValue, Recorder
from precast.onnx.rules.opsets import integer, op
from precast.onnx.rules.registry import rule


def scan(
    step: Callable[..., tuple[Sequence[Any], Sequence[Any]]],
    start: Sequence[Any],
    sequences: Sequence[tuple[Any, int]],
    *,
    output_axis: int,
) -> list[Any]:
    """Carry ``start`` along the sequences, each with its axis; ``step(*carried, *elements)`` gives both next ones.

    The carried values come first in what it returns, then what the steps gave beside them, stacked along
    ``output_axis``.
    """
    outer = evaluator.default()
    assert isinstance(outer, Recorder), "rules run while a graph is recorded"
    values = [*start, *(sequence for sequence, _ in sequences)]
    inputs = [RecordedValue(type=value.type) for value in values]
    # A recorder of its own: constants made inside cannot be used outside.
    inner = Recorder()
    with evaluator.default_as(inner):
        carried, given = step(*inputs)
        outputs = [inner.call("Identity", value)[0] for value in (*carried, *given)]
    body = ir.Graph(inputs, outputs, nodes=inner.take_nodes(), name="step")
    axes = [axis for _, axis in sequences]
    return outer.call(
        "Scan",
        *values,
        outputs=len(outputs),
        body=body,
        num_scan_inputs=len(sequences),
        scan_input_axes=axes,
        scan_output_axes=[output_axis] * len(given),
    )


_FLOATS = (ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.FLOAT16)


@rule("aten::cumprod")
def running_product(x: Any, dim: int, *, dtype: int = -1) -> Any:
    rank = len(x.shape)
    if dtype != -1:
        x = op.Cast(x, to=dtype)
    if not rank:
        return op.Identity(x)

    def step(product: Any, element: Any) -> tuple[list[Any], list[Any]]:
        following = op.Mul(product, element)
        return [following], [following]

    axis = dim % rank
    return scan(step, [_ones(x, axis)], [(x, axis)], output_axis=axis)[1]


@rule("aten::cummax")
def running_maximum(x: Any, dim: int) -> Any:
    return _running_extreme(x, dim, op.GreaterOrEqual)


@rule("aten::cummin")
def running_minimum(x: Any, dim: int) -> Any:
    return _running_extreme(x, dim, op.LessOrEqual)


def _running_extreme(x: Any, dim: int, is_better: Any) -> Any:
    """The best so far and its index; of equal ones the last, and NaN is best of all."""
    if not x.shape:
        return op.Identity(x), integer(0)
    axis = dim % len(x.shape)
    count = op.Squeeze(op.Shape(x, start=axis, end=axis + 1))
    numbers = op.Range(integer(0), count, integer(1))
    first = _first(x, axis)
    start = op.Expand(integer(0), op.Shape(first))

    def step(best: Any, place: Any, element: Any, index: Any) -> tuple[list[Any], list[Any]]:
        replaces = is_better(element, best)
        if x.dtype in _FLOATS:
            replaces = op.Or(op.And(replaces, op.Not(op.IsNaN(best))), op.IsNaN(element))
        best, place = op.Where(replaces, element, best), op.Where(replaces, index, place)
        return [best, place], [best, place]

    _, _, values, indices = scan(step, [first, start], [(x, axis), (numbers, 0)], output_axis=axis)
    return values, indices


def _first(x: Any, axis: int) -> Any:
    """The first element along an axis, which is gone."""
    return op.Gather(x, integer(0), axis=axis)


def _ones(x: Any, axis: int) -> Any:
    return op.ConstantOfShape(op.Shape(_first(x, axis)), value=ir.tensor([1], dtype=x.dtype))
