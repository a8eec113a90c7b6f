"""Sizes that depend on data and must turn out to be equal: checked when the program runs, as in eager."""

import pytest
import torch

import precast

MASK = torch.tensor([True, False, True, True, False, True])
X, W = torch.arange(24.0).reshape(6, 4), torch.arange(18.0).reshape(6, 3)

PROGRAMS = {
    "mm": lambda x, w, m, n: x[m].t() @ w[n],
    "bmm": lambda x, w, m, n: x[m].t()[None] @ w[n][None],
    "linear": lambda x, w, m, n: torch.nn.functional.linear(x[m].t(), w[n].t()),
    "add": lambda x, w, m, n: x[m][:, 0].relu() + w[n][:, 1].relu(),
    "where": lambda x, w, m, n: torch.where(x[m][:, 0] > 3, w[n][:, 0], x[m][:, 1]) * 2,
}


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_what_fits_is_computed_and_what_does_not_is_refused(program):
    compiled = precast.compile(program, fullgraph=True)
    for other in (MASK, MASK.flip(0)):
        torch.testing.assert_close(compiled(X, W, MASK, other), program(X, W, MASK, other))
    with pytest.raises(RuntimeError, match="4"):
        program(X, W, MASK, torch.ones(6, dtype=torch.bool))
    with pytest.raises(RuntimeError, match="4"):
        compiled(X, W, MASK, torch.ones(6, dtype=torch.bool))
