"""Recurrent layers that ONNX's operator does not support: an LSTM with a projection of its state.

Before: ``lstm(x, (h, c), [w_ih, w_hh, b_ih, b_hh, w_hr])``
After:  one product for all steps, and a ``Scan`` over time that projects the state in each step
"""

from collections.abc import Sequence
from typing import Any

from onnxscript.function_libs.torch_lib.ops import core

from precast.onnx.rules.loops import scan
from precast.onnx.rules.opsets import integers, op
from precast.onnx.rules.random import dropped
from precast.onnx.rules.registry import rule


@rule("aten::lstm.input")
def lstm(
    x: Any,
    start: Sequence[Any],
    parameters: Sequence[Any],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> Any:
    """Torchlib's rule, except for projections."""
    if start[0].shape[-1] == start[1].shape[-1]:
        options = (has_biases, num_layers, dropout, train, bidirectional, batch_first)
        return core.aten_lstm(x, start, parameters, *options)
    sequence = op.Transpose(x, perm=[1, 0, 2]) if batch_first else x
    directions, each = 1 + bidirectional, 5 if has_biases else 3
    states: list[tuple[Any, Any]] = []
    for layer in range(num_layers):
        results = []
        for reverse in range(directions):
            own = len(states)
            hidden, cell = (op.Gather(value, _number(own), axis=0) for value in start)
            weights = parameters[own * each : (own + 1) * each]
            hidden, cell, result = _direction(sequence, hidden, cell, weights, is_reverse=bool(reverse))
            states.append((hidden, cell))
            results.append(result)
        sequence = op.Concat(*results, axis=-1) if bidirectional else results[0]
        if train and dropout and layer + 1 < num_layers:
            sequence = dropped(sequence, dropout)
    result = op.Transpose(sequence, perm=[1, 0, 2]) if batch_first else sequence
    stacked = [op.Concat(*(op.Unsqueeze(state[kind], integers(0)) for state in states), axis=0) for kind in (0, 1)]
    return result, *stacked


def _number(value: int) -> Any:
    return op.Constant(value_int=value)


def _direction(
    sequence: Any, hidden: Any, cell: Any, weights: Sequence[Any], *, is_reverse: bool
) -> tuple[Any, Any, Any]:
    from_input, from_hidden, *biases, projection = weights
    fed = op.MatMul(sequence, op.Transpose(from_input, perm=[1, 0]))
    for bias in biases:
        fed = op.Add(fed, bias)

    def step(hidden: Any, cell: Any, fed: Any) -> tuple[list[Any], list[Any]]:
        gates = op.Add(fed, op.MatMul(hidden, op.Transpose(from_hidden, perm=[1, 0])))
        opened, kept, new, shown = op.Split(gates, axis=-1, num_outputs=4)
        cell = op.Add(op.Mul(op.Sigmoid(kept), cell), op.Mul(op.Sigmoid(opened), op.Tanh(new)))
        whole = op.Mul(op.Sigmoid(shown), op.Tanh(cell))
        hidden = op.MatMul(whole, op.Transpose(projection, perm=[1, 0]))
        return [hidden, cell], [hidden]

    hidden, cell, result = scan(step, [hidden, cell], [(fed, 0)], output_axis=0, is_reverse=is_reverse)
    return hidden, cell, result
