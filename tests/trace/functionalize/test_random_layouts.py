"""Random numbers drawn into tensors that do not lie row by row: as in eager, at the same places, lying the same."""

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional as F

import precast

LAYOUTS: dict[str, Callable[[], torch.Tensor]] = {
    "row by row": lambda: torch.zeros(2, 6, 8),
    "permuted": lambda: torch.zeros(8, 2, 6).permute(1, 2, 0),
    "transposed": lambda: torch.zeros(12, 6).t(),
    "channels last": lambda: torch.zeros(2, 3, 4, 4).to(memory_format=torch.channels_last),
    "expanded": lambda: torch.zeros(2, 1, 8).expand(2, 3, 8),
}
DRAWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "dropout": lambda x: F.dropout(x + 1, 0.4),
    "alpha dropout": lambda x: F.alpha_dropout(x + 1, 0.4, training=True),
    "bernoulli_": lambda x: torch.empty_like(x).bernoulli_(0.3),
    "bernoulli": lambda x: torch.bernoulli(x + 0.5),
    "uniform_": lambda x: torch.empty_like(x).uniform_(),
    "normal_": lambda x: torch.empty_like(x).normal_(),
    "random_": lambda x: torch.empty_like(x).random_(5),
    "random_ from": lambda x: torch.empty_like(x).random_(2, 9),
    "random_ from, without a bound": lambda x: torch.empty_like(x).random_(2, None),
    "random_ of bytes": lambda x: torch.empty_like(x, dtype=torch.uint8).random_(250, None),
    "rrelu": lambda x: F.rrelu(x - 1, training=True),
    "rrelu of an input": lambda x: F.rrelu(x, training=True),
    "rand_like": torch.rand_like,
    "normal": lambda x: torch.normal(x, x + 1),
    "poisson": lambda x: torch.poisson(x + 2),
}


@pytest.mark.thinned
@pytest.mark.parametrize("draw", DRAWS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_draws_are_eagers_where_eager_puts_them(draw, layout):
    function, tensor = DRAWS[draw], LAYOUTS[layout]()
    torch.manual_seed(1)
    expected = function(tensor)
    torch.manual_seed(1)
    found = precast.compile(function, backend="nop", options={"random": "eager"}, fullgraph=True)(tensor)
    assert torch.equal(found, expected)
    assert found.stride() == expected.stride()


PARTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "columns": lambda x: x[:, ::2],
    "few": lambda x: x[:3, :4],
    "an odd number": lambda x: x[:5, 1:8],
    "one column": lambda x: x[:, 3],
    "transposed": lambda x: x.t()[3:],
}
FILLS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "bernoulli_": lambda x: x.bernoulli_(0.3),
    "cauchy_": lambda x: x.cauchy_(),
    "exponential_": lambda x: x.exponential_(),
    "geometric_": lambda x: x.geometric_(0.3),
    "log_normal_": lambda x: x.log_normal_(),
    "normal_": lambda x: x.normal_(1.0, 2.0),
    "random_": lambda x: x.random_(5),
    "random_ from": lambda x: x.random_(2, 9),
    "uniform_": lambda x: x.uniform_(-1, 1),
}


@pytest.mark.thinned
@pytest.mark.parametrize("backend", ["nop", "native"])
@pytest.mark.parametrize("part", PARTS)
def test_draws_into_a_part_are_eagers(part, backend):
    def function(x):
        results = [x + number for number in range(len(FILLS))]
        for fill, result in zip(FILLS.values(), results, strict=True):
            fill(PARTS[part](result))
        return [*results, torch.rand(3)]

    torch.manual_seed(1)
    expected = function(torch.zeros(21, 30))
    torch.manual_seed(1)
    compiled = precast.compile(function, backend=backend, options={"random": "eager"}, fullgraph=True)
    found = compiled(torch.zeros(21, 30))
    for fill, mine, eagers in zip([*FILLS, "afterwards"], found, expected, strict=True):
        assert torch.allclose(mine, eagers, rtol=1e-5), fill


@pytest.mark.parametrize("layout", ["permuted", "channels last"])
def test_draws_into_an_input_that_is_not_row_by_row(layout):
    expected, tensor = LAYOUTS[layout](), LAYOUTS[layout]()
    torch.manual_seed(1)
    expected.bernoulli_(0.3)
    torch.manual_seed(1)
    precast.compile(lambda x: x.bernoulli_(0.3), backend="nop", options={"random": "eager"})(tensor)
    assert torch.equal(tensor, expected)
