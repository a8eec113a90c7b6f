"""``Scan`` nodes out of a Python function that takes one step."""

from collections.abc import Callable, Sequence
from typing import Any

import onnx_ir as ir
from onnxscript import evaluator

from precast.onnx.recorded_value import RecordedValue
from precast.onnx.recorder import Recorder


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
