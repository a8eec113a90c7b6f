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


def test_an_lstm_infers_without_a_call_back_into_torch() -> None:
    layer = torch.nn.LSTM(6, 5, num_layers=2, bidirectional=True).eval()
    with torch.no_grad():
        assert precast.explain(layer, torch.randn(7, 3, 6)).fallbacks == ()


def test_an_lstm_of_very_many_steps_stays_whole() -> None:
    with torch.no_grad():
        assert precast.explain(torch.nn.LSTM(2, 2).eval(), torch.randn(300, 1, 2)).fallbacks


@pytest.mark.parametrize("bias", [False, True])
def test_an_lstm_goes_on_from_a_given_state(bias: bool) -> None:
    layer = torch.nn.LSTM(6, 5, num_layers=2, bias=bias).eval()
    sequence, state = torch.randn(4, 3, 6), (torch.randn(2, 3, 5), torch.randn(2, 3, 5))
    with torch.no_grad():
        torch.testing.assert_close(precast.compile(layer)(sequence, state), layer(sequence, state))
