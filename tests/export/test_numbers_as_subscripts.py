"""Tensors of one whole number as subscripts, and checks of numbers that come out as constants: as eager has them."""

import pytest
import torch

import precast
from precast.export import export

X = torch.randn(5, 5)


def module_of(forward):
    return type("Made", (torch.nn.Module,), {"forward": forward})()


def written(x, n):
    x = x.clone()
    x[n] = 7
    return x


SUBSCRIPTS = {
    "a row": lambda self, n, x: x[n],
    "a column": lambda self, n, x: x[:, n],
    "an element": lambda self, n, x: x[n, 1],
    "two": lambda self, n, x: x[n, n - 1],
    "from there on": lambda self, n, x: x[n:],
    "up to there": lambda self, n, x: x[:n, None],
    "written": lambda self, n, x: written(x, n),
}


@pytest.mark.parametrize("name", SUBSCRIPTS)
@pytest.mark.filterwarnings("ignore")
def test_a_tensor_as_a_subscript(name):
    model = module_of(SUBSCRIPTS[name])
    module = export(model, (torch.tensor(3), X)).module()
    for n in (3, 2, 4):
        torch.testing.assert_close(module(torch.tensor(n), X), model(torch.tensor(n), X))


def test_a_compiled_function_keeps_it_in_its_graph():
    compiled = precast.compile(lambda n, x: x[n] * 2, fullgraph=True)
    for n in (1, 3):
        torch.testing.assert_close(compiled(torch.tensor(n), X), X[n] * 2)


@pytest.mark.parametrize(
    "condition",
    [lambda k, x: k == 3, lambda k, x: k == x.shape[0] - 2, lambda k, x: k + 1 == 4],
    ids=["a constant", "a size", "a sum"],
)
def test_a_number_that_is_checked_to_be_a_constant_is_checked_at_each_call(condition):
    def forward(self, n, x):
        torch._check(condition(n.item(), x))
        return x * n.item()

    module = export(module_of(forward), (torch.tensor(3), X)).module()
    torch.testing.assert_close(module(torch.tensor(3), X), X * 3)
    with pytest.raises(RuntimeError, match="3"):
        module(torch.tensor(2), X)
