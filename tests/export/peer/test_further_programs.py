"""Programs found by comparing large sets with PyTorch's exporter: both record and check the same."""

import math
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch._higher_order_ops import scan, while_loop
from torch.nn import functional as F

from tests.export.peer.comparison import WRITES, Case, differences, module

ONES, X, SQUARE = torch.ones, torch.randn(4, 3), torch.randn(3, 3)
CALLS = [((torch.randn(7, 3),), {}), ((torch.randn(2, 3),), {})]


def rows(forward):
    """Over a free number of rows."""
    return Case(module(forward), (X,), shapes=lambda p: {"x": {0: p.Dim("n", min=2, max=64)}}, calls=CALLS)


def both(forward):
    """Over two free sizes."""
    shapes = lambda p: {"x": {0: p.Dim("a"), 1: p.Dim("b")}}  # noqa: E731
    return Case(module(forward), (X,), shapes=shapes, calls=[*CALLS, ((torch.randn(5, 6),), {})])


def number(forward):
    """Over a number that only running gives."""
    return Case(module(forward), (torch.tensor(3), X), calls=[((torch.tensor(2), X), {})])


def data(forward):
    """Over sizes that only running gives."""
    return Case(module(forward), (X,), calls=[((X + 1.5,), {})])


def loop(forward):
    return Case(module(forward, layer=lambda: nn.Linear(3, 3)), (X,), calls=[((X + 1,), {})])


def choice(forward):
    made = module(forward, layer=lambda: nn.Linear(3, 3))
    return Case(made, (torch.tensor(True), X), calls=[((torch.tensor(False), X), {})])


def write(forward):
    return Case(module(forward, b=ONES(3)), (X,), calls=[((X + 1,), {})], differs=WRITES)


def layer(make, *args):
    return Case(make, args)


def size(n):
    number = n.item()
    torch._check(number >= 0)
    torch._check(number <= 4)
    return number


def checked(condition):
    def forward(self, n, x):
        torch._check(condition(n.item(), x))
        return x * 2

    # A number that is found to be a constant is one here.
    return replace(number(forward), differs=dict.fromkeys(("ranges", "operators"), "told as a constant"))


def counted(carry, each):
    return carry + each, carry * each


CASES = {
    **{
        f"rows: {name}": rows(forward)
        for name, forward in {
            "mean": lambda self, x: x.mean(0), "softmax": lambda self, x: x.softmax(0),
            "flat": lambda self, x: x.flatten(), "view": lambda self, x: x.view(-1),
            "reshape": lambda self, x: x.reshape(x.shape[0] * 3), "expand": lambda self, x: x[None].expand(2, -1, -1),
            "repeat": lambda self, x: x.repeat(2, 1), "cat": lambda self, x: torch.cat([x, x * 2]),
            "stack": lambda self, x: torch.stack([x, x], 1), "pad": lambda self, x: F.pad(x, (0, 0, 1, 2)),
            "arange": lambda self, x: torch.arange(x.shape[0])[:, None] * x,
            "full": lambda self, x: torch.full((x.size(0),), 2.0) + x[:, 0],
            "eye": lambda self, x: torch.eye(x.shape[0]) @ x,
            "tril": lambda self, x: ONES(x.shape[0], x.shape[0]).tril() @ x,
            "linspace": lambda self, x: torch.linspace(0, 1, x.shape[0])[:, None] * x,
            "remainder": lambda self, x: x[: x.shape[0] % 3], "power": lambda self, x: x * (x.shape[0] ** 2),
            "quotient": lambda self, x: x / x.shape[0], "floor": lambda self, x: x * math.floor(x.shape[0] * 0.5),
            "truncated": lambda self, x: x * int(x.shape[0] * 0.7), "round": lambda self, x: x * round(x.shape[0] / 3),
            "max": lambda self, x: x * max(x.shape[0], 3), "min": lambda self, x: x * min(x.shape[0], x.shape[1]),
            "sym_max": lambda self, x: torch.zeros(torch.sym_max(x.shape[0], 5)),
            "sym_float": lambda self, x: x * torch.sym_float(x.shape[0]),
            "divmod": lambda self, x: x * divmod(x.shape[0], 2)[0], "shape": lambda self, x: x.shape,
            "sizes": lambda self, x: (x.size(), x.numel()), "branch": lambda self, x: x + 1 if x.shape[0] < 100 else x,
            "checked": lambda self, x: (torch._check(x.shape[0] < 50), x)[1],
            "split": lambda self, x: x.split(2)[0], "unfold": lambda self, x: x.unfold(0, 2, 1),
            "diagonal": lambda self, x: (x @ x.t()).diagonal(),
            "einsum": lambda self, x: torch.einsum("ij,kj->ik", x, x),
            "bmm": lambda self, x: torch.bmm(x[None], x.t()[None]),
            "pool": lambda self, x: F.max_pool1d(x.t()[None], 2),
            "interpolate": lambda self, x: F.interpolate(x.t()[None], scale_factor=2),
            "to a size": lambda self, x: F.interpolate(x.t()[None], size=8),
            "adaptive": lambda self, x: F.adaptive_avg_pool1d(x.t()[None], 1), "sort": lambda self, x: x.sort(0),
            "topk": lambda self, x: x.topk(2, 0), "cumsum": lambda self, x: x.cumsum(0),
            "roll": lambda self, x: x.roll(1, 0),
            "flip": lambda self, x: x.flip(0), "index": lambda self, x: x[torch.tensor([0, 1])],
            "gather": lambda self, x: x.gather(0, torch.zeros(1, 3, dtype=torch.int64)),
            "attention": lambda self, x: F.scaled_dot_product_attention(*[x[None, None]] * 3, is_causal=True),
            "layer norm": lambda self, x: F.layer_norm(x, (3,)), "normalize": lambda self, x: F.normalize(x, dim=0),
            "cross entropy": lambda self, x: F.cross_entropy(x, x.argmax(1)),
            "cdist": lambda self, x: torch.cdist(x, x),
            "outer": lambda self, x: torch.outer(x[:, 0], x[:, 1]), "kron": lambda self, x: torch.kron(x, x[:1]),
            "tile": lambda self, x: x.tile(2, 1), "broadcast": lambda self, x: x + x[:1],
            "unflatten": lambda self, x: x.flatten().unflatten(0, (-1, 3)), "std": lambda self, x: x.std(0),
            "bucketize": lambda self, x: torch.bucketize(x, torch.tensor([0.0, 1.0])),
            "quantile": lambda self, x: x.quantile(0.5, 0), "median": lambda self, x: x.median(0),
            "aminmax": lambda self, x: torch.aminmax(x), "repeat_interleave": lambda self, x: x.repeat_interleave(2, 0),
            "rnn cell": lambda self, x: torch.rnn_tanh_cell(x, x, ONES(3, 3), ONES(3, 3)),
            "vander": lambda self, x: torch.vander(x[:, 0], 3), "histc": lambda self, x: torch.histc(x, 4),
            "triu_indices": lambda self, x: torch.triu_indices(x.shape[0], x.shape[0]),
            "trapezoid": lambda self, x: torch.trapezoid(x, dim=0), "rfft": lambda self, x: torch.fft.rfft(x, dim=1),
            "differences": lambda self, x: (x[:, None] - x[None]).abs().sum(-1),
        }.items()
    },
    **{
        f"both: {name}": both(forward)
        for name, forward in {
            "product": lambda self, x: x.t() @ x, "view": lambda self, x: x.view(-1),
            "permute": lambda self, x: x.permute(1, 0).reshape(x.shape[0], x.shape[1]),
            "cat": lambda self, x: torch.cat([x, x], 1),
        }.items()
    },
    **{
        f"number: {name}": number(forward)
        for name, forward in {
            "zeros": lambda self, n, x: torch.zeros(size(n)).sum() + x, "slice": lambda self, n, x: x[: size(n)].sum(),
            "narrow": lambda self, n, x: x.narrow(0, 0, size(n)), "arange": lambda self, n, x: torch.arange(size(n)),
            "repeat": lambda self, n, x: x[0].repeat(size(n), 1), "expand": lambda self, n, x: x[:1].expand(size(n), 3),
            "full": lambda self, n, x: torch.full((size(n), 2), 1.0) * x[0, 0], "sum": lambda self, n, x: x + n.item(),
            "product": lambda self, n, x: x * (n.item() * 2 + 1), "result": lambda self, n, x: (n.item(), x),
            "float": lambda self, n, x: x * float(n), "int": lambda self, n, x: x * int(n),
            "bool": lambda self, n, x: x * (n > 2).item(), "cat": lambda self, n, x: torch.cat([x[: size(n)], x]),
            "pad": lambda self, n, x: F.pad(x, (0, size(n))), "matmul": lambda self, n, x: x[: size(n)] @ x.t(),
            "layer norm": lambda self, n, x: F.layer_norm(x[: size(n)], (3,)),
            "max": lambda self, n, x: x * max(n.item(), 2),
            "difference": lambda self, n, x: x * (4 - n.item()), "where": lambda self, n, x: torch.where(n > 2, x, -x),
            "cond": lambda self, n, x: torch.cond(n > 2, lambda a: a + 1, lambda a: a - 1, (x,)),
            "branch on a number": lambda self, n, x: x + 1 if n.item() > 2 else x,
            "branch on a tensor": lambda self, n, x: x + 1 if n > 2 else x,
            "list": lambda self, n, x: x * n.reshape(1).tolist()[0],
            "range": lambda self, n, x: sum(range(n.item())) + x,
            "split": lambda self, n, x: x.split([size(n), 4 - size(n)]), "eye": lambda self, n, x: torch.eye(size(n)),
            "view": lambda self, n, x: x[: size(n)].reshape(-1),
            "linear": lambda self, n, x: F.linear(x[: size(n)], ONES(2, 3)),
            "index_fill": lambda self, n, x: x.index_fill(0, n.reshape(1), 1.0),
            "power": lambda self, n, x: x ** n.item(),
            "quotient": lambda self, n, x: x * (n.item() // 2), "remainder": lambda self, n, x: x * (n.item() % 2),
        }.items()
    },
    "number: two subscripts": replace(
        number(lambda self, n, x: x[n, 1]), differs=dict.fromkeys(("operators", "ranges"), "the subscript is checked")
    ),
    "check: a constant": checked(lambda k, x: k == 3),
    "check: a size": checked(lambda k, x: k == x.shape[0] - 1),
    "check: a sum": checked(lambda k, x: k + 1 == x.shape[0]),
    "check: a bound": checked(lambda k, x: k >= 3),
    **{
        f"data: {name}": data(forward)
        for name, forward in {
            "nonzero": lambda self, x: x.nonzero(), "mask": lambda self, x: x[x > 0],
            "inverse": lambda self, x: x.round().unique(return_inverse=True),
            "masked_select": lambda self, x: x.masked_select(x > 0), "argwhere": lambda self, x: torch.argwhere(x > 0),
            "bincount": lambda self, x: torch.bincount((x[:, 0] > 0).long(), minlength=2),
            "how many": lambda self, x: x.nonzero().shape[0], "rows": lambda self, x: x[x[:, 0] > 0] @ ONES(3, 2),
            "masked_scatter": lambda self, x: x.masked_scatter(x > 0, torch.zeros(12)),
            "kthvalue": lambda self, x: x.kthvalue(2, 0), "columns": lambda self, x: x[:, x[0] > -9],
            "constant mask": lambda self, x: x[torch.tensor([True, False, True, True])],
        }.items()
    },
    **{
        f"cond: {name}": choice(forward)
        for name, forward in {
            "a dict": lambda self, p, x: (
                torch.cond(p, lambda d: {"r": d["a"] + 1}, lambda d: {"r": d["a"] * 2}, ({"a": x},))
            ),
            "nested": lambda self, p, x: torch.cond(
                p, lambda a: torch.cond(a.sum() > 0, lambda b: b.sin(), lambda b: b.cos(), (a,)), lambda a: a + 1, (x,)
            ),
            "twice": lambda self, p, x: (
                torch.cond(p, torch.sin, torch.cos, (torch.cond(p, torch.exp, torch.abs, (x,)),))
            ),
            "a layer": lambda self, p, x: torch.cond(p, lambda a: self.layer(a), lambda a: self.layer(a) * 2, (x,)),
            "on data": lambda self, p, x: torch.cond(x.sum() > 0, lambda a: a + 1, lambda a: a - 1, (x,)),
            "on a size": lambda self, p, x: torch.cond(x.shape[0] > 2, lambda a: a + 1, lambda a: a - 1, (x,)),
        }.items()
    },
    **{
        f"loop: {name}": loop(forward)
        for name, forward in {
            "counted": lambda self, x: (
                while_loop(lambda i, a: i < 3, lambda i, a: (i + 1, a * 2), (torch.tensor(0), x))
            ),
            "until": lambda self, x: while_loop(lambda a: a.sum() < 100, lambda a: (a.abs() + 1,), (x,)),
            "scan": lambda self, x: scan(counted, torch.zeros(3), x),
            "backwards": lambda self, x: scan(counted, torch.zeros(3), x, reverse=True),
            "a layer": lambda self, x: scan(lambda c, y: (self.layer(c) + y, c.clone()), torch.zeros(3), x),
        }.items()
    },
    **{
        f"write: {name}": write(forward)
        for name, forward in {
            "add": lambda self, x: (self.b.add_(1), x + self.b)[1],
            "by data": lambda self, x: (self.b.mul_(x.sum()), x)[1],
            "copy": lambda self, x: (self.b.copy_(x[0]), x * self.b)[1],
            "an element": lambda self, x: (self.b.__setitem__(0, x.sum()), self.b * x)[1],
            "a slice": lambda self, x: (self.b[1:].add_(1), self.b + x)[1],
            "twice": lambda self, x: (self.b.add_(1), self.b.mul_(2), self.b + x)[2],
            "a view": lambda self, x: (self.b.view(3, 1).add_(1), self.b + x)[1],
            "returned": lambda self, x: (self.b.add_(1), self.b)[1], "zeros": lambda self, x: self.b.zero_() + x,
            "an argument": lambda self, x: torch.add(x, 1, out=torch.empty(4, 3)),
            "exchanged": lambda self, x: (setattr(self, "b", self.b + 1), self.b + x)[1],
            "a diagonal": lambda self, x: x.clone().fill_diagonal_(0.0), "turned": lambda self, x: x.clone().t_(),
        }.items()
    },
    "layer: weight_norm, by a hook": layer(lambda: nn.utils.weight_norm(nn.Linear(3, 3)), SQUARE),
    "layer: spectral_norm, by a hook": layer(lambda: nn.utils.spectral_norm(nn.Linear(3, 3)).eval(), SQUARE),
    "layer: weight_norm": layer(lambda: nn.utils.parametrizations.weight_norm(nn.Linear(3, 3)), SQUARE),
    "layer: orthogonal": layer(lambda: nn.utils.parametrizations.orthogonal(nn.Linear(3, 3)), SQUARE),
    **{
        f"layer: {kind.__name__}": layer(kind, torch.randn(2, 4))
        for kind in (nn.GLU, nn.Hardswish, nn.Mish, nn.CELU, nn.SELU, nn.Softshrink, nn.Hardtanh, nn.Softsign, nn.ReLU6)
    },
    **{
        f"loss: {kind.__name__}": layer(kind, torch.rand(2, 3), torch.rand(2, 3))
        for kind in (nn.MSELoss, nn.L1Loss, nn.HuberLoss, nn.SmoothL1Loss, nn.BCEWithLogitsLoss, nn.SoftMarginLoss)
    },
}  # fmt: skip
# Every twentieth is compared each time, all of them in the slow tier.
QUICK = {*list(CASES)[::20], "check: a constant", "number: two subscripts"}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in CASES]
)
def test_both_exporters_agree(name):
    assert not differences(CASES[name])
