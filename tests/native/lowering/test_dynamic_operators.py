"""Operators compiled once for all sizes, called with the sizes they were traced with and with others."""

import pytest
import torch
import torch.nn.functional as F

from tests.native.lowering.cases import as_tuple, floats, integers
from tests.native.lowering.numbers import assert_right, doubled
from tests.native.lowering.pipeline import lowered, make_entry, open_entries

aten = torch.ops.aten


def below(size, *shape, seed=0):
    return integers(*shape, low=0, high=size, seed=seed)


def heads(length, seed):
    return floats(2, length, 3, 8, seed=seed).transpose(1, 2)


def attention(query, key):
    return aten._scaled_dot_product_flash_attention_for_cpu(query, key, key)


# No other size below is this, or a little larger: equal sizes would be taken for the same.
TRACED = 13
# function, and the inputs for a size that all of them grow with
CASES = {
    "embedding": (lambda w, i: aten.embedding(w, i), lambda n: [floats(n + 3, 5), below(n, n, 3)]),
    "gather": (lambda x, i: x.gather(1, i), lambda n: [floats(n, 6), below(6, n, 8)]),
    "index": (lambda x, i, j: x[i, :, j], lambda n: [floats(n, 3, n + 1), below(n, 4), below(n, 4, seed=1)]),
    "scatter_add": (lambda x, i, s: x.scatter_add(0, i, s), lambda n: [floats(n, 3), below(n, 9, 3), floats(9, 3)]),
    "index_put": (
        lambda x, i, s: x.index_put((i,), s, accumulate=True), lambda n: [floats(n, 3), below(n, 4), floats(3)]),
    "embedding_backward": (
        lambda dy, i: aten.embedding_dense_backward(dy, i, 9, -1, False), lambda n: [floats(n, 9, 5), below(9, n, 9)]),
    "layer_norm": (lambda x, w: F.layer_norm(x, [9], w), lambda n: [floats(n, n + 1, 9), floats(9)]),
    "layer_norm_all": (lambda x: F.layer_norm(x, [x.shape[1]]), lambda n: [floats(4, n + 2)]),
    "group_norm": (lambda x, w: F.group_norm(x, 3, w), lambda n: [floats(n, 6, n + 2, 5), floats(6)]),
    "batch_norm": (
        lambda x: aten._native_batch_norm_legit.no_stats(x, None, None, True, 0.1, 1e-5),
        lambda n: [floats(n, 6, n + 2, 5)]),
    "convolution": (lambda x, w, b: F.conv2d(x, w, b, stride=2, padding=1),
                    lambda n: [floats(n, 4, n + 6, 9), floats(6, 4, 3, 3), floats(6)]),
    "max_pool": (lambda x: F.max_pool2d(x, 3, 2, 1), lambda n: [floats(n, 3, n + 6, 9)]),
    "average_pool": (lambda x: F.avg_pool2d(x, 3, 2, 1), lambda n: [floats(n, 3, n + 6, 9)]),
    "adaptive_pool": (lambda x: aten._adaptive_avg_pool2d(x, [1, 1]), lambda n: [floats(n, 3, n + 6, 9)]),
    "attention": (attention, lambda n: [heads(n + 2, 0), heads(n + 4, 1)]),
    "argmax": (lambda x: x.argmax(1), lambda n: [floats(n, n + 9)]),
    "sort": (lambda x: tuple(x.sort(1)), lambda n: [floats(n, n + 9)]),
    "topk": (lambda x: tuple(x.topk(3, 1)), lambda n: [floats(n, n + 9)]),
    "cumsum": (lambda x: x.cumsum(0), lambda n: [floats(n, n + 9)]),
    "upsample": (lambda x: aten.upsample_bilinear2d(x, [9, 5], False), lambda n: [floats(n, 3, n + 2, 4)]),
    "reflection": (lambda x: F.pad(x, (2, 1, 1, 0), mode="reflect"), lambda n: [floats(n, 3, n + 2, 4)]),
    "roll": (lambda x: x.roll(2, 1), lambda n: [floats(n, n + 3)]),
    "slice_scatter": (lambda x, s: aten.slice_scatter(x, s, 1, 1, 4), lambda n: [floats(n, n + 5), floats(n, 3)]),
}  # fmt: skip


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    programs = [
        lowered(function, *inputs(TRACED), name=name, dynamic=True) for name, (function, inputs) in CASES.items()
    ]
    entries = [make_entry(program) for program in programs]
    assert not {entry.name: entry.fallbacks for entry in entries if entry.fallbacks}
    return open_entries(entries, tmp_path_factory.mktemp("cache"))


@pytest.mark.parametrize("size", [TRACED, 11])
@pytest.mark.parametrize("name", CASES)
def test_one_library_serves_all_sizes(model, name, size):
    function, inputs = CASES[name][0], CASES[name][1](size)
    exact = as_tuple(function(*doubled(inputs)))
    for mine, eager, reference in zip(model[name](*inputs), as_tuple(function(*inputs)), exact, strict=True):
        assert_right(mine, eager, reference, sums=True)
