"""Recurrent layers through the default backend, whose kernels hand a workspace of their own to the backward."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

import precast

LAYERS: dict[str, Callable[..., torch.nn.Module]] = {
    "lstm": torch.nn.LSTM,
    "gru": torch.nn.GRU,
    "rnn": torch.nn.RNN,
}


@pytest.mark.thinned
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


class UnrolledBothWays(torch.nn.Module):
    """Gated recurrent units over a sequence and over its reverse, step by step."""

    def __init__(self):
        super().__init__()
        sizes = [(12, 3), (12, 4), (12,), (12,)] * 2
        self.weights = torch.nn.ParameterList([torch.nn.Parameter(torch.randn(size) / 2) for size in sizes])

    def one_way(self, x, to_input, to_state, input_bias, state_bias):
        state, states = torch.zeros(1, x.shape[1], 4), []
        for given in F.linear(x, to_input, input_bias).unbind(0):
            reset, update, new = given.unsqueeze(0).chunk(3, 2)
            own_reset, own_update, own_new = F.linear(state, to_state, state_bias).chunk(3, 2)
            new = (new + own_new * (own_reset + reset).sigmoid()).tanh()
            state = (state - new) * (own_update + update).sigmoid() + new
            states.append(state)
        return torch.cat(states)

    def forward(self, x):
        ahead, back = self.one_way(x, *self.weights[:4]), self.one_way(x.flip(0), *self.weights[4:])
        return torch.cat([ahead, back.flip(0)], -1)


def test_gradients_that_are_put_together_of_many_parts_in_one_loop():
    """The compiler took one part's elements for another's, in a loop that it had unrolled."""
    torch.manual_seed(0)
    module, x = UnrolledBothWays(), torch.randn(2, 2, 3)
    compiled = precast.compile(module, dynamic=True, fullgraph=True)
    found, expected = (
        torch.autograd.grad(call(x).square().sum(), list(module.parameters())) for call in (compiled, module)
    )
    torch.testing.assert_close(found, expected)
