"""Builds ``Scan`` and ``Loop`` nodes from a Python function that computes one step.

Before: ``loop(lambda number, total: [op.Add(total, number)], count, [start])``
After:  ``Loop(count, true, start, body={total = Add(total_before, number)})``
"""

from collections.abc import Callable, Sequence
from typing import Any

import onnx_ir as ir
from onnxscript import evaluator

from precast.onnx.recorder import RecordedValue, Recorder
from precast.onnx.rules.opsets import op


def _recorder() -> Recorder:
    outer = evaluator.default()
    assert isinstance(outer, Recorder), "rules run while a graph is recorded"
    return outer


def _body(
    inputs: Sequence[ir.Value], step: Callable[[], Sequence[Any]], passed_on: Sequence[ir.Value] = ()
) -> ir.Graph:
    """A graph with a recorder of its own: constants made inside cannot be used outside."""
    inner = Recorder()
    with evaluator.default_as(inner):
        outputs = [inner.call("Identity", value)[0] for value in (*passed_on, *step())]
    return ir.Graph(inputs, outputs, nodes=inner.take_nodes(), name="step")


def scan(
    step: Callable[..., tuple[Sequence[Any], Sequence[Any]]],
    start: Sequence[Any],
    sequences: Sequence[tuple[Any, int]],
    *,
    output_axis: int,
    is_reverse: bool = False,
) -> list[Any]:
    """Scan ``sequences``, each along its axis, from ``start``; ``step(*carried, *elements)`` returns both next ones.

    The final carried values are returned first, then the other results of the steps, stacked along
    ``output_axis``.
    """
    values = [*start, *(sequence for sequence, _ in sequences)]
    inputs = [RecordedValue(type=value.type) for value in values]
    count = 0

    def both() -> list[Any]:
        nonlocal count
        carried, given = step(*inputs)
        count = len(given)
        return [*carried, *given]

    body = _body(inputs, both)
    axes = [axis for _, axis in sequences]
    given: dict[str, Any] = {
        "scan_output_axes": [output_axis] * count,
        "scan_output_directions": [int(is_reverse)] * count,
    }
    return _recorder().call(
        "Scan",
        *values,
        outputs=len(body.outputs),
        body=body,
        num_scan_inputs=len(sequences),
        scan_input_axes=axes,
        scan_input_directions=[int(is_reverse)] * len(axes),
        **(given if count else {}),
    )


def loop(step: Callable[..., Sequence[Any]], count: Any, start: Sequence[Any]) -> list[Any]:
    """Carry ``start`` through ``count`` steps; ``step(number, *carried)`` returns the next values."""
    number = RecordedValue(type=ir.TensorType(ir.DataType.INT64), shape=ir.Shape([]))
    goes_on = RecordedValue(type=ir.TensorType(ir.DataType.BOOL), shape=ir.Shape([]))
    carried = [RecordedValue(type=value.type) for value in start]
    body = _body([number, goes_on, *carried], lambda: step(number, *carried), [goes_on])
    always = op.Constant(value=ir.tensor(True))
    return _recorder().call("Loop", count, always, *start, outputs=len(start), body=body)
