"""Masks among indices and conditions, as eager takes and refuses them."""

import pytest
import torch

import precast

pytestmark = pytest.mark.filterwarnings("ignore")
MASK = torch.tensor([1, 0, 1, 1, 0])


def read(x, mask, values):
    return x[mask]


def read_columns(x, mask, values):
    return x[:, mask]


def write(x, mask, values):
    x = x.clone()
    x[mask] = values
    return x


def put(x, mask, values):
    return x.index_put((mask,), values, accumulate=True)


def outcome(function, *inputs):
    try:
        return function(*inputs)
    except (IndexError, RuntimeError) as error:
        return type(error), str(error)


@pytest.mark.thinned
@pytest.mark.parametrize("backend", ["native", "nop"])
@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8])
@pytest.mark.parametrize("function", [read, read_columns, write, put])
def test_masks_choose_as_in_eager_and_are_refused_with_its_words(function, dtype, backend):
    compiled = precast.compile(function, fullgraph=True, backend=backend)
    x, values = torch.randn(5, 5), torch.arange(5.0)
    for mask in (MASK[:2], MASK, MASK[:1], torch.ones(5, 4), torch.ones(5, 5, 1)):
        ours, eager = (outcome(each, x, mask.to(dtype), values) for each in (compiled, function))
        if isinstance(eager, tuple):
            assert ours == eager
        else:
            torch.testing.assert_close(ours, eager)


def test_a_mask_of_bytes_and_as_many_values():
    mask = MASK.to(torch.uint8)
    compiled = precast.compile(write, fullgraph=True)
    with pytest.raises(IndexError):
        compiled(torch.zeros(5, 5), mask[:2], torch.ones(1, 5))
    values = torch.randn(3, 5)
    torch.testing.assert_close(compiled(torch.zeros(5, 5), mask, values), write(torch.zeros(5, 5), mask, values))


def test_a_condition_of_bytes_chooses_as_in_eager():
    def gradients(function):
        x, y = torch.arange(5.0).requires_grad_(), torch.ones(5, requires_grad=True)
        result = function(MASK.to(torch.uint8) * 3, x, y)
        return result, *torch.autograd.grad(result.sum(), (x, y))

    torch.testing.assert_close(gradients(precast.compile(torch.where, fullgraph=True)), gradients(torch.where))


def test_masks_of_dynamic_sizes():
    compiled = precast.compile(write, fullgraph=True, dynamic=True)
    for rows in (5, 3, 7):
        x, mask = torch.randn(rows, 2), torch.arange(rows) % 2 == 0
        torch.testing.assert_close(compiled(x, mask, torch.tensor(1.0)), write(x, mask, torch.tensor(1.0)))
