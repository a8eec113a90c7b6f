"""Recurrent layers as steps that native code is made of.

Before: ``mkldnn_rnn_layer(x, …)``: a call back into torch, which packs its weights in every call
After:  one product for the inputs of all steps; a product and a kernel for each step, whose weights are packed once
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

_LSTM = 2
# Each step is traced and lowered for itself, about 20 ms of a wait; with many, packing costs torch little beside them.
_MOST_STEPS = 64


def mkldnn_rnn_layer(
    source: Tensor, input_weight: Tensor, hidden_weight: Tensor, input_bias: Tensor, hidden_bias: Tensor,
    hidden: Tensor, cell: Tensor, reverse: bool, batch_sizes: Sequence[int], mode: int, hidden_size: int,
    num_layers: int, has_biases: bool, bidirectional: bool, batch_first: bool, train: bool,
) -> object:  # fmt: skip
    """One layer of an LSTM in one direction, whatever is said of layers and batches, which is meant for all of them.

    In grad mode it is not taken apart, since its backward wants its workspace.
    """
    is_plain = mode == _LSTM and not batch_sizes and source.dtype == torch.float32
    if torch.is_grad_enabled() or not is_plain or not _has_few_steps(source):
        return NotImplemented
    steps, batch, features = source.shape
    inputs = source.reshape(steps * batch, features) @ input_weight.t()
    if has_biases:
        inputs = inputs + (input_bias + hidden_bias)
    inputs = inputs.view(steps, batch, 4 * hidden_size)
    h, c = hidden.reshape(batch, hidden_size), cell.reshape(batch, hidden_size)
    results = []
    for step in reversed(range(steps)) if reverse else range(steps):
        h, c = _lstm_step(inputs[step] + h @ hidden_weight.t(), c)
        results.append(h)
    results = results[::-1] if reverse else results
    workspace = source.new_empty(0, dtype=torch.uint8)
    return torch.stack(results), h.reshape(hidden.shape), c.reshape(cell.shape), workspace


def _has_few_steps(source: Tensor) -> bool:
    return isinstance(source.shape[0], int) and 0 < source.shape[0] <= _MOST_STEPS


def _lstm_step(gates: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
    enter, forget, candidate, leave = gates.chunk(4, dim=1)
    cell = forget.sigmoid() * cell + enter.sigmoid() * candidate.tanh()
    return leave.sigmoid() * cell.tanh(), cell
