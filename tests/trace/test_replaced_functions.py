"""Functions whose kernels look at values are traced as what they compute."""

import copy

import pytest
import torch
from torch.nn import functional

import precast

_TARGETS, _LENGTHS, _ENDS = torch.tensor([[1, 2, 3], [2, 3, 1]]), torch.tensor([10, 8]), torch.tensor([3, 2])


def assert_like_eager(function, *inputs, backend="nop"):
    compiled = precast.compile(function, backend=backend, fullgraph=True)
    results = []
    for call in (function, compiled):
        own = [each.detach().clone().requires_grad_(each.requires_grad) for each in inputs]
        result = call(*own)
        if result.requires_grad:
            result.square().sum().backward()
        results.append((result, [each.grad for each in own]))
    torch.testing.assert_close(results[1], results[0])


@pytest.mark.thinned
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("zero_infinity", [False, True])
def test_ctc_loss(reduction, zero_infinity):
    def loss(x, targets, lengths, ends):
        return functional.ctc_loss(
            x.log_softmax(-1), targets, lengths, ends, reduction=reduction, zero_infinity=zero_infinity
        )

    torch.manual_seed(0)
    assert_like_eager(loss, torch.randn(10, 2, 5, requires_grad=True), _TARGETS, _LENGTHS, _ENDS)
    with torch.no_grad():
        assert_like_eager(loss, torch.randn(10, 2, 5), _TARGETS, _LENGTHS, _ENDS)


def test_ctc_loss_of_an_alignment_that_does_not_exist():
    short = torch.tensor([2, 8])
    x = torch.randn(10, 2, 5, requires_grad=True)
    assert_like_eager(lambda x: functional.ctc_loss(x.log_softmax(-1), _TARGETS, short, _ENDS, zero_infinity=True), x)


def test_ctc_loss_of_numbers_and_of_one_sequence():
    x = torch.randn(10, 5, requires_grad=True)
    assert_like_eager(lambda x: functional.ctc_loss(x.log_softmax(-1), _TARGETS[0], (10,), (3,)), x)
    assert_like_eager(
        lambda x: torch.nn.CTCLoss(blank=4)(x.log_softmax(-1)[:, None], _TARGETS[:1], (10,), (3,)), x, backend="native"
    )


@pytest.mark.parametrize("sizes", [(3, 5), (5,), (1, 4)])
def test_covariances_and_correlations(sizes):
    torch.manual_seed(0)
    x = torch.randn(sizes, requires_grad=True)
    assert_like_eager(lambda x: torch.cov(x, correction=0), x)
    assert_like_eager(lambda x: x.cov(), x)
    assert_like_eager(torch.corrcoef, x)


def test_weighted_covariances_refuse_what_eager_refuses():
    torch.manual_seed(0)
    x, counts, shares = torch.randn(3, 4, requires_grad=True), torch.tensor([1, 2, 0, 3]), torch.rand(4)

    def weighted(x, counts, shares):
        return torch.cov(x, fweights=counts, aweights=shares)

    assert_like_eager(weighted, x, counts, shares)
    with pytest.raises(RuntimeError, match="fweights cannot be negative"):
        precast.compile(weighted, backend="nop", fullgraph=True)(x, -counts, shares)


@pytest.mark.parametrize("backend", ["nop", "native"])
def test_grouped_products_of_float32(backend):
    torch.manual_seed(0)
    rows, matrices = torch.randn(8, 16, requires_grad=True), torch.randn(3, 16, 32, requires_grad=True)
    ends = torch.tensor([3, 3, 8], dtype=torch.int32)
    assert_like_eager(lambda x, w, ends: torch._grouped_mm(x, w, offs=ends), rows, matrices, ends, backend=backend)


@pytest.mark.thinned
@pytest.mark.parametrize("shape", [(4, 4), (9, 2), (2, 9), (3, 3, 3)], ids=str)
@pytest.mark.parametrize("wrap", [False, True])
def test_the_diagonal_of_a_view_is_filled(shape, wrap):
    def fill(x):
        y = x * 1
        y[0].fill_diagonal_(2.0, wrap=wrap)
        return y

    assert_like_eager(fill, torch.zeros(2, *shape, requires_grad=True))


def test_gradients_of_dense_tensors_made_of_sparse_ones():
    assert_like_eager(lambda x: (x.to_sparse() * 2).to_dense().sin(), torch.randn(3, 3, requires_grad=True))


def test_a_deep_copy_has_memory_of_its_own():
    def program(x):
        copied, again, number = copy.deepcopy([kept := x.detach(), kept, 3])
        copied.add_(1)
        return x + copied * number + again

    assert_like_eager(program, torch.randn(3, requires_grad=True))


@pytest.mark.parametrize("shapes", [None, {"x": {0: precast.Dim.AUTO}}])
@pytest.mark.parametrize(("r", "with_replacement"), [(1, False), (2, False), (2, True), (3, False), (3, True)])
def test_combinations(r, with_replacement, shapes):
    class Choosing(torch.nn.Module):
        def forward(self, x):
            return torch.combinations(x, r, with_replacement)

    module = precast.export(Choosing(), (torch.arange(4.0),), dynamic_shapes=shapes).module()
    for length in (4,) if shapes is None else (2, 5):
        x = torch.arange(float(length))
        torch.testing.assert_close(module(x), Choosing()(x))
