"""Cross entropy: what rows are normalized by is saved, and nothing as large as the scores is written for the loss."""

import pytest
import torch
import torch.nn.functional as F

import precast
from precast.backend import get_backend
from precast.graph.nodes import value_of


def _losses(x, y):
    return F.cross_entropy(x, y), F.cross_entropy(x, y, label_smoothing=0.1, reduction="none"), F.nll_loss(
        x.float().log_softmax(-1), y, reduction="sum"
    )  # fmt: skip


def _found(function, x, y):
    source = x.clone().requires_grad_()
    losses = function(source, y)
    sum(each.double().nan_to_num(0, 0, 0).sum() for each in losses).backward()
    return [*losses, source.grad]


def _scores(dtype):
    x, y = (4 * torch.randn(12, 300)).to(dtype), torch.randint(0, 300, (12,))
    y[2] = -100
    return x, y


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_losses_and_gradients_are_eagers(dtype):
    x, y = _scores(dtype)
    x[0, 3], x[1, 5], y[0], y[1] = float("-inf"), 60.0, 3, 7
    compiled = precast.compile(_losses, fullgraph=True)
    for ours, eagers in zip(_found(compiled, x, y), _found(_losses, x, y), strict=True):
        torch.testing.assert_close(ours, eagers)


def test_halves_are_as_near_to_double_precision_as_eager():
    x, y = _scores(torch.bfloat16)
    exact = _found(_losses, x.double(), y)
    errors = [
        [(one.double() - other).abs().max() for one, other in zip(_found(function, x, y), exact, strict=True)]
        for function in (precast.compile(_losses, fullgraph=True), _losses)
    ]
    for ours, eagers in zip(*errors, strict=True):
        assert ours <= 2 * eagers + 1e-4


def test_what_is_saved_of_a_row_is_two_numbers():
    saved = []

    def split(joint, inputs, *, num_fwd_outputs, **others):
        forward, backward = native.partition_fn(joint, inputs, num_fwd_outputs=num_fwd_outputs, **others)
        saved.extend(forward.graph.output_node().args[0][num_fwd_outputs:])
        return forward, backward

    native = get_backend("native")
    x, y = torch.randn(64, 300, requires_grad=True), torch.randint(0, 300, (64,))
    run = precast.aot_function(
        F.cross_entropy, native.fw_compiler, native.bw_compiler, split, decompositions=native.decompositions
    )
    run(x, y).backward()
    sizes = sorted(value_of(each).numel() for each in saved if isinstance(value_of(each), torch.Tensor))
    assert sizes[-1] == x.numel(), "the scores themselves"
    assert max(sizes[:-1]) == 64, "and numbers of rows"
