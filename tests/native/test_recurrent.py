"""Recurrent layers through the default backend, whose kernels hand a workspace of their own to the backward."""

from collections.abc import Callable

import pytest
import torch

import precast

LAYERS: dict[str, Callable[..., torch.nn.Module]] = {
    "lstm": torch.nn.LSTM,
    "gru": torch.nn.GRU,
    "rnn": torch.nn.RNN,
}


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("bidirectional", [False, True])
def test_a_recurrent_layer_infers_as_in_eager(name: str, bidirectional: bool) -> None:
    layer = LAYERS[name](6, 5, num_layers=2, batch_first=True, bidirectional=bidirectional).eval()
    sequence = torch.randn(3, 7, 6)
    with torch.no_grad():
        torch.testing.assert_close(precast.compile(layer)(sequence), layer(sequence))


@pytest.mark.parametrize("name", LAYERS)
def test_a_recurrent_layer_trains_as_in_eager(name: str) -> None:
    layer = LAYERS[name](6, 5, num_layers=2)
    sequence = torch.randn(7, 3, 6, requires_grad=True)

    def gradients(call: Callable[..., tuple[torch.Tensor, object]]) -> tuple[torch.Tensor, ...]:
        results, _ = call(sequence)
        return torch.autograd.grad(results.sin().sum(), [sequence, *layer.parameters()])

    torch.testing.assert_close(gradients(precast.compile(layer)), gradients(layer))
