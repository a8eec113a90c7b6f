"""Habits of modules that look at values: branches on data, numbers read out, NumPy, texts, chance and clocks."""

import logging
import random
import time
import warnings

import numpy as np
import torch
from torch import nn

from tests.habits.storing import WIDTH, Block

logger = logging.getLogger("tests.habits")


class BranchOnMean(Block):
    def forward(self, x):
        return self.linear(x) if x.mean() > 0 else x * 2


class BranchOnItem(Block):
    def forward(self, x):
        scale = x.abs().max().item()
        if scale > 1.5:
            x = x / scale
        return self.linear(x)


class NanCheck(Block):
    def forward(self, x):
        out = self.linear(x)
        if torch.isnan(out).any():
            raise ValueError("nan in output")
        return out


class AssertFinite(Block):
    def forward(self, x):
        assert torch.isfinite(x).all(), "input must be finite"
        return self.linear(x).relu()


class LoopUntilSmall(Block):
    def forward(self, x):
        out, count = self.linear(x), 0
        while out.norm() > 2 and count < 5:
            out = out / 2
            count += 1
        return out


class RoutedRows(Block):
    def __init__(self):
        super().__init__()
        self.experts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x):
        choice = self.linear(x)[:, :3].argmax(-1)
        out = torch.zeros_like(x)
        for number in choice.unique().tolist():
            rows = (choice == number).nonzero(as_tuple=True)[0]
            out[rows] = self.experts[number](x[rows])
        return out


class RoutedByIndexAdd(Block):
    def __init__(self):
        super().__init__()
        self.experts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))

    def forward(self, x):
        weights, chosen = self.linear(x)[:, :2].softmax(-1).topk(1)
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            rows, column = torch.where(chosen == number)
            if rows.numel() == 0:
                continue
            out.index_add_(0, rows, expert(x[rows]) * weights[rows, column, None])
        return out


class MaskedRows(Block):
    def forward(self, x):
        out = self.linear(x)
        mask = out.sum(-1) > 0
        return out * mask[:, None] + out[mask].sum() * 0.1


class SplitBySizes(Block):
    def forward(self, x):
        sizes = [x.shape[0] // 2, x.shape[0] - x.shape[0] // 2]
        first, second = self.linear(x).split(sizes)
        return torch.cat([second, first])


class LengthFromData(Block):
    def forward(self, x):
        length = int((x[:, 0] > -10).sum())
        return torch.nn.functional.pad(self.linear(x[:length]), (0, 0, 0, x.shape[0] - length))


class NumpyRoundTrip(Block):
    def forward(self, x):
        table = np.tanh(x.detach().cpu().numpy())
        return self.linear(x) + torch.from_numpy(table).to(x)


class NumpyConstants(Block):
    def __init__(self):
        super().__init__()
        self.grid = np.linspace(0, 1, WIDTH).astype(np.float32)

    def forward(self, x):
        return self.linear(x) / np.sqrt(WIDTH) + torch.from_numpy(self.grid)


class PrintsShape(Block):
    def forward(self, x):
        print("shape", x.shape, x.dtype)
        return self.linear(x)


class PrintsOnce(Block):
    printed = False

    def forward(self, x):
        if not self.printed:
            print(f"first call with {x.shape[0]} rows")
            self.printed = True
        return self.linear(x)


class PrintsValue(Block):
    def forward(self, x):
        print(f"mean {x.detach().mean():.2f}")
        return self.linear(x)


class Logs(Block):
    def forward(self, x):
        logger.info("rows %d", x.shape[0])
        logger.debug("value %s", x)
        return self.linear(x)


class Warns(Block):
    def forward(self, x):
        if x.shape[0] == 1:
            warnings.warn("a batch of one", stacklevel=2)
        return self.linear(x)


class KeepsItems(Block):
    def __init__(self):
        super().__init__()
        self.losses = []

    def forward(self, x):
        out = self.linear(x)
        self.losses.append(round(out.mean().item(), 3))
        return out


class LayerDropByPython(Block):
    def forward(self, x):
        if self.training and random.random() < 0.5:
            return x
        return self.linear(x)


class LayerDropByTorch(Block):
    def forward(self, x):
        if self.training and torch.rand(1).item() < 0.5:
            return x
        return self.linear(x)


class DropPath(Block):
    def forward(self, x):
        if not self.training:
            return self.linear(x)
        keep = torch.bernoulli(torch.full((x.shape[0], 1), 0.8))
        return self.linear(x) * keep / 0.8


class Dropouts(Block):
    def forward(self, x):
        return nn.functional.dropout(self.linear(x).relu(), 0.3, training=self.training)


class NoiseAdded(Block):
    def forward(self, x):
        return self.linear(x + torch.randn_like(x) * 0.1) if self.training else self.linear(x)


class NumpyChance(Block):
    def forward(self, x):
        return self.linear(x) * float(np.random.rand() > 0.5)


class Timed(Block):
    def __init__(self):
        super().__init__()
        self.timed = 0

    def forward(self, x):
        start = time.perf_counter()
        out = self.linear(x)
        self.timed += time.perf_counter() > start
        return out


class EqualCheck(Block):
    def forward(self, x):
        out = self.linear(x)
        if torch.equal(x, torch.zeros_like(x)) or torch.allclose(out, x):
            return out * 0
        return out


class TriesAndExcepts(Block):
    def forward(self, x):
        try:
            return self.linear(x.view(-1, WIDTH + 1))
        except RuntimeError:
            return self.linear(x)


class TensorAsIndex(Block):
    def forward(self, x):
        best = x.mean(0).argmax()
        return self.linear(x) + x[:, best, None]


class ListOfFloats(Block):
    def forward(self, x):
        weights = torch.tensor([0.1 * number for number in range(WIDTH)])
        return self.linear(x) * weights


class ToListAndBack(Block):
    def forward(self, x):
        scores = x.detach().mean(0).tolist()
        order = sorted(range(WIDTH), key=lambda number: scores[number])
        return self.linear(x)[:, order]


BLOCKS = [
    BranchOnMean, BranchOnItem, NanCheck, AssertFinite, LoopUntilSmall, RoutedRows, RoutedByIndexAdd, MaskedRows,
    SplitBySizes, LengthFromData, NumpyRoundTrip, NumpyConstants, PrintsShape, PrintsOnce, PrintsValue, Logs, Warns,
    KeepsItems, LayerDropByPython, LayerDropByTorch, DropPath, Dropouts, NoiseAdded, NumpyChance, Timed, EqualCheck,
    TriesAndExcepts, TensorAsIndex, ListOfFloats, ToListAndBack,
]  # fmt: skip
