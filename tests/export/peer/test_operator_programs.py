"""Programs of all kinds of layers and operators: both exporters record the same, as captured and as decomposed."""

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.export.peer.comparison import IDLE, OTHER_CORE, WRITES, Case, differences, module

RANDOM = torch.randn


def without_gradients(self, x):
    with torch.no_grad():
        doubled = x * 2
    return doubled + x


def in_half_precision(self, x):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return x @ x


def assigning(self, x):
    x = x.clone()
    x[0] = 1
    x[:, 1] = 2
    return x


def assigning_by_index(self, x, index):
    made = torch.zeros_like(x)
    made[index] = 1.0
    return made + x[index, :].sum()


def case(forward, *args, **options):
    return Case(module(forward), args, **options)


def layer(make, *args, **options):
    return Case(make, args, **options)


MATRIX = (RANDOM(3, 3),)
ONE_HOT = {"operators": "made by a scatter, which takes free sizes too"}
CASES = {
    "dropout": layer(lambda: nn.Dropout(0.5), RANDOM(3)),
    "dropout turned off": layer(lambda: nn.Dropout(0.5).eval(), RANDOM(3), differs=IDLE),
    "attention": case(lambda self, q, k, v: F.scaled_dot_product_attention(q, k, v), *[RANDOM(1, 2, 4, 8)] * 3),
    "attention layer": layer(lambda: nn.MultiheadAttention(8, 2, batch_first=True).eval(), *[RANDOM(1, 4, 8)] * 3),
    "encoder layer": layer(
        lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval(), RANDOM(1, 4, 8), differs=IDLE
    ),
    "lstm": layer(lambda: nn.LSTM(3, 4), RANDOM(5, 2, 3)),
    "gru cell": layer(lambda: nn.GRUCell(3, 4), RANDOM(2, 3)),
    "embedding": layer(lambda: nn.Embedding(10, 3), torch.tensor([1, 2])),
    "bags": layer(
        lambda: nn.EmbeddingBag(10, 3), torch.tensor([[1, 2]]), differs={"operators": "results that nothing reads"}
    ),
    "convolutions": layer(
        lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2)).eval(),
        RANDOM(1, 3, 8, 8),
    ),
    "interpolation": case(lambda self, x: F.interpolate(x, scale_factor=2), RANDOM(1, 3, 4, 4)),
    "layer norm": layer(lambda: nn.LayerNorm(3), RANDOM(2, 3)),
    "group norm": layer(lambda: nn.GroupNorm(2, 4), RANDOM(2, 4, 3)),
    "batch norm in training": layer(lambda: nn.BatchNorm1d(3), RANDOM(4, 3), differs=WRITES),
    "batch norm": layer(lambda: nn.BatchNorm1d(3).eval(), RANDOM(4, 3)),
    "cross entropy": case(lambda self, x, y: F.cross_entropy(x, y), RANDOM(2, 3), torch.tensor([0, 1])),
    "to a dtype": case(lambda self, x: x.to(torch.float16) + x.half(), RANDOM(3)),
    "to the same dtype": case(lambda self, x: x.to(torch.float32), RANDOM(3)),
    "to a device": case(lambda self, x: x.to("cpu") + x.cpu(), RANDOM(3)),
    "without gradients": case(without_gradients, RANDOM(3)),
    "autocast": case(in_half_precision, *MATRIX),
    "assignment": case(assigning, *MATRIX, differs=WRITES),
    "assignment by index": case(assigning_by_index, *MATRIX, torch.tensor([0, 2]), differs=WRITES),
    "new tensors": case(lambda self, x: torch.zeros(3) + x + torch.ones_like(x) + torch.full((3,), 2.0), RANDOM(3)),
    "random numbers": case(lambda self, x: torch.rand(3) + x + torch.randn_like(x), RANDOM(3)),
    "einsum": case(lambda self, x, y: torch.einsum("ij,jk->ik", x, y), RANDOM(3, 4), RANDOM(4, 5)),
    "detach": case(lambda self, x: x.detach() + 1, RANDOM(3)),
    "contiguous": case(lambda self, x: x.t().contiguous() + x.clone().t(), *MATRIX),
    "views": case(lambda self, x: x.unsqueeze(0).squeeze(0).permute(1, 0).flatten(0, 1), RANDOM(3, 4)),
    "stacking": case(lambda self, x: torch.hstack([x, x]) + torch.stack([x, x]).sum(), RANDOM(3)),
    "a number of a constant": case(lambda self, x: x * torch.tensor(2).item(), RANDOM(3)),
    "where": case(lambda self, x: torch.where(x > 0, x, 0.0), RANDOM(3)),
    "topk": case(lambda self, x: torch.topk(x, 2), RANDOM(5)),
    "max": case(lambda self, x: x.max(dim=0), RANDOM(5, 2)),
    "padding": case(lambda self, x: F.pad(x, (1, 2)), RANDOM(5, 2)),
    "unbind": case(lambda self, x: sum(x.unbind(0)), RANDOM(3, 2)),
    "rows": case(lambda self, x: [row + 1 for row in x], RANDOM(3, 2)),
    "gelu": case(lambda self, x: F.gelu(x) + F.silu(x) + F.softplus(x), RANDOM(3)),
    "softmax": case(lambda self, x: x.softmax(-1) + x.log_softmax(-1), *MATRIX),
    "norms": case(lambda self, x: x.norm() + x.var(0).sum() + x.std(), *MATRIX),
    "sorting": case(lambda self, x: x.sort(dim=1), *MATRIX),
    "scatter": case(lambda self, x, i: x.scatter(0, i, 1.0), *MATRIX, torch.tensor([[0, 1, 2]])),
    "gather": case(lambda self, x, i: x.gather(0, i), *MATRIX, torch.tensor([[0, 1, 2]])),
    "masked": case(lambda self, x: x.masked_fill(x > 0, 0.0), *MATRIX),
    "cumsum": case(lambda self, x: x.cumsum(0), *MATRIX),
    "tril": case(lambda self, x: x.tril() + torch.triu(x, 1), *MATRIX),
    "roll and flip": case(lambda self, x: x.roll(1, 0).flip(1), *MATRIX),
    "one hot": case(lambda self, i: F.one_hot(i, 4), torch.tensor([1, 3]), differs=ONE_HOT),
    "complex": case(lambda self, x: torch.view_as_real(torch.view_as_complex(x) * 2), RANDOM(3, 2)),
    "bitwise": case(lambda self, i: (i & 3) | (i << 1), torch.tensor([5, 6])),
    "comparison": case(lambda self, x, y: (x == y) | (x < y), RANDOM(3), RANDOM(3)),
    "floor division": case(lambda self, x: x // 2 + x % 2, RANDOM(3)),
    "clamp": case(lambda self, x: x.clamp(min=0.0, max=1.0), RANDOM(3)),
    "pooling": case(lambda self, x: F.avg_pool2d(x, 2) + F.adaptive_avg_pool2d(x, 2), RANDOM(1, 3, 4, 4)),
    "conv1d": layer(lambda: nn.Conv1d(3, 4, 3, padding=1), RANDOM(1, 3, 8)),
    "transposed convolution": layer(lambda: nn.ConvTranspose2d(3, 4, 3), RANDOM(1, 3, 8, 8)),
    "bilinear": layer(lambda: nn.Bilinear(3, 4, 5), RANDOM(2, 3), RANDOM(2, 4)),
    "prelu": layer(lambda: nn.PReLU(), RANDOM(3)),
    "cosine similarity": case(lambda self, x, y: F.cosine_similarity(x, y), *MATRIX, RANDOM(3, 3)),
    "cdist": case(lambda self, x, y: torch.cdist(x, y), *MATRIX, RANDOM(3, 3)),
    "repeat": case(lambda self, x: x.repeat(2, 1) + x.repeat_interleave(2, dim=0), *MATRIX),
    "unfold": case(lambda self, x: x.unfold(0, 2, 1), *MATRIX),
    "meshgrid": case(lambda self, x, y: torch.meshgrid(x, y, indexing="ij"), RANDOM(3), RANDOM(2)),
}
# What differs in decomposed programs.
OTHERWISE = {
    "one hot": ONE_HOT,
    **dict.fromkeys(("views", "unbind", "rows", "cross entropy", "assignment", "lstm"), OTHER_CORE),
    "dropout": {"operators": "as eager draws"},
    "encoder layer": IDLE,
    "attention layer": {},
    "dropout turned off": IDLE,
    "interpolation": {"operators": "the form with sizes"},
    "bags": {},
    "batch norm in training": {},
    "assignment by index": {},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_both_exporters_agree(name):
    assert not differences(CASES[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_decompositions_agree(name):
    assert not differences(replace(CASES[name], decomposed=True, differs=OTHERWISE.get(name, {})))
