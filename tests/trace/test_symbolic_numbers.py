"""Python functions of numbers that are symbols while a program is traced."""

import math

import pytest
import torch

import precast
from precast.graph.interpreter import interpret
from precast.trace.capture import Dim, capture


def test_extremes_of_sizes_are_computed_at_each_call():
    def padded(a, b):
        most = max([a.shape[0], b.shape[0], a.shape[0]])
        return torch.zeros(most).sum() + min(a.shape[0], b.shape[0], 100), most

    program = capture(padded, (torch.ones(3), torch.ones(4)), dynamic_shapes=({0: Dim("a")}, {0: Dim("b")}))
    assert interpret(program, torch.ones(7), torch.ones(2)) == (torch.tensor(2.0), 7)


def test_extremes_and_powers_of_numbers_that_only_data_tell():
    program = capture(lambda n: (max(n.item(), 8), min(n, 3), math.pow(n.item(), 2)), (torch.tensor(4),))
    assert interpret(program, torch.tensor(9)) == (9, torch.tensor(3), 81.0)
    assert interpret(program, torch.tensor(2)) == (8, torch.tensor(2), 4.0)


def written(x, places):
    y = x * 1
    y[places[0]] = 0
    y[:, places[1]] += 1
    return y


SUBSCRIPTS = {
    "row": lambda x, places: x[places[0]] * 2,
    "column": lambda x, places: x[:, places[1]],
    "element": lambda x, places: x[places[0], ..., places[1].int()] + 1,
    "from": lambda x, places: x[places[0] :] * 2,
    "to": lambda x, places: x[:, None, : places[1]].sum(0),
    "written": written,
}


@pytest.mark.thinned
@pytest.mark.parametrize("backend", ["nop", "native"])
@pytest.mark.parametrize("function", SUBSCRIPTS.values(), ids=SUBSCRIPTS)
def test_subscripts_that_are_tensors_of_one_number(function, backend):
    compiled = precast.compile(function, backend=backend, fullgraph=True)
    for first, second in ((2, 1), (0, 3), (-1, -2)):
        results = []
        for call in (function, compiled):
            x = torch.arange(20.0).view(4, 5).requires_grad_()
            result = call(x, torch.tensor([first, second]))
            result.square().sum().backward()
            results.append((result, x.grad))
        torch.testing.assert_close(results[1], results[0])


def test_a_subscript_of_one_number_outside_of_the_tensor_is_refused():
    compiled = precast.compile(lambda x, place: x[place] * 2, backend="native", fullgraph=True)
    with pytest.raises(IndexError, match="7"):
        compiled(torch.ones(4, 5), torch.tensor(7))


def test_subscripts_of_state_are_read_at_each_call():
    """Also those inside of slices, where tensors are not looked for otherwise."""

    class Rest(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("start", torch.tensor(2))

        def forward(self, x):
            return x[self.start :] * 2

    module = Rest()
    compiled = precast.compile(module, backend="nop", fullgraph=True)
    for start in (2, 3, 0):
        module.start.fill_(start)
        torch.testing.assert_close(compiled(torch.arange(4.0)), torch.arange(4.0)[start:] * 2)
