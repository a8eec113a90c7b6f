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


# What follows says how many elements are chosen: losses over all pairs but those of a thing with itself.
OTHERS = {
    "masked_select": lambda x, m: x.masked_select(m).view(5, 4) * 2,
    "index": lambda x, m: x[m].view(5, -1).softmax(-1) + x[m].view(5, 4),
    "nonzero": lambda x, m: x.relu()[torch.nonzero(m).view(4, 5, 2)[..., 0]],
}


@pytest.mark.parametrize("program", OTHERS.values(), ids=OTHERS)
def test_a_count_that_a_view_makes_known_is_checked(program):
    square, others = torch.arange(25.0).reshape(5, 5).requires_grad_(), ~torch.eye(5, dtype=torch.bool)
    compiled = precast.compile(program, fullgraph=True)
    for mask in (others, others.roll(1, 0)):
        got, want = compiled(square, mask), program(square, mask)
        torch.testing.assert_close(got, want)
        gradients = [torch.autograd.grad(each.sin().sum(), square)[0] for each in (got, want)]
        torch.testing.assert_close(*gradients)
    for mask in (torch.ones(5, 5, dtype=torch.bool), torch.zeros(5, 5, dtype=torch.bool)):
        with pytest.raises(RuntimeError):
            program(square, mask)
        with pytest.raises((RuntimeError, ValueError), match=r"size|dimension 0 is"):
            compiled(square, mask)


COUNTS = torch.tensor([3, 1, 2])


def axial(x, counts):
    columns = -(-(counts.max().item() + 1) // 2)
    return torch.cat([x[:, :columns], x[:, :columns] * 2], dim=-1)


def longer(x, counts):
    return torch.ones(counts[0].item() * 2 + 1).cumsum(0) * x[0, 0], counts[1].item() + 5


def of_two_results(x, counts):
    values, places = torch.unique(counts.remainder(2), return_inverse=True)
    return (values * 2).float().exp(), places + values.shape[0] * 3


@pytest.mark.parametrize("program", [axial, longer, of_two_results])
def test_sizes_are_computed_from_numbers_that_are_data(program):
    compiled = precast.compile(program, fullgraph=True)
    for counts in (COUNTS, COUNTS.flip(0) + 1):
        torch.testing.assert_close(compiled(X, counts), program(X, counts))


def test_a_view_by_sizes_that_are_data_has_as_many_elements():
    def program(x, sizes):
        rows, columns = sizes.tolist()
        return x.relu().view(2, rows, columns).transpose(1, 2) + 1

    compiled = precast.compile(program, fullgraph=True)
    for sizes in (torch.tensor([3, 4]), torch.tensor([6, 2])):
        torch.testing.assert_close(compiled(X, sizes), program(X, sizes))
    with pytest.raises(RuntimeError, match=r"(?s)for expression .*u\d, 12\) in .*x.relu\(\).view\(2, rows, columns\)"):
        compiled(X, torch.tensor([3, 5]))


def test_numbers_that_were_put_into_tensors_are_still_known():
    def program(x):
        length = torch.ceil(torch.as_tensor(2 * x.shape[1] / 3)).long()
        return x[:, :length] * int(torch.tensor(4.0).sqrt().item())

    torch.testing.assert_close(precast.compile(program, fullgraph=True)(X), program(X))


def test_a_list_without_elements_is_taken_into_a_concatenation_whatever_its_rank():
    def program(x):
        return torch.cat([torch.tensor([]), x[None, None]], dim=-2) * 2

    torch.testing.assert_close(precast.compile(program, fullgraph=True)(X), program(X))
