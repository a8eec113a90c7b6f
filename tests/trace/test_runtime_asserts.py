"""What a program says of values that only running gives is checked by each run of the compiled function."""

import pytest
import torch

import precast


def _constant(x, n):
    torch._check(n[0].item() == 3)
    return x * 2


def _limit(x, n):
    count = n[0].item()
    torch._check_is_size(count)
    torch._check(count <= 4)
    return x[:count].sum() + x.sum()


def _equal(x, n):
    first, second = n.tolist()
    torch._check(first == second)
    return x * 2


def _found(x, n):
    places = torch.nonzero(n - 3)
    torch._check(places.shape[0] == 0)
    return x * 2 + places.sum()


@pytest.mark.thinned
@pytest.mark.parametrize("backend", ["nop", "native"])
@pytest.mark.parametrize("needs_grad", [False, True])
@pytest.mark.parametrize("program", [_constant, _limit, _equal, _found])
def test_runs_are_refused_as_in_eager(program, needs_grad, backend):
    compiled = precast.compile(program, backend=backend, fullgraph=True)
    for numbers in ([3, 3], [3, 2], [9, 3], [4, 4]):
        n, x = torch.tensor(numbers), torch.ones(6, requires_grad=needs_grad)
        try:
            expected = program(x, n)
        except RuntimeError:
            with pytest.raises(RuntimeError):
                compiled(x, n)
        else:
            torch.testing.assert_close(compiled(x, n), expected)
