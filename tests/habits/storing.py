"""Habits of modules that keep something while they run: attributes, buffers, caches, counters, hooks."""

from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import nn

WIDTH = 4


class Block(nn.Module):
    """Rows of ``WIDTH`` features in and out."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)


class AttentionKept(Block):
    def forward(self, x):
        self.attention_weights = self.linear(x).softmax(-1)
        return x + self.attention_weights


class RecurrentState(Block):
    def __init__(self):
        super().__init__()
        self.cell = nn.LSTMCell(WIDTH, WIDTH)
        self.hidden = None

    def reset(self):
        self.hidden = None

    def forward(self, x):
        if self.hidden is None or self.hidden[0].shape[0] != x.shape[0]:
            self.hidden = (x.new_zeros(x.shape[0], WIDTH), x.new_zeros(x.shape[0], WIDTH))
        h, c = self.cell(x, self.hidden)
        self.hidden = (h.detach(), c.detach())
        return self.linear(h)


class HistoryList(Block):
    def __init__(self):
        super().__init__()
        self.history = []

    def forward(self, x):
        out = self.linear(x)
        self.history.append(out.detach().mean())
        self.history = self.history[-2:]
        return out + torch.stack(self.history).mean()


class FeatureDict(Block):
    def __init__(self):
        super().__init__()
        self.features = {}

    def forward(self, x):
        self.features["input"] = x
        out = self.linear(x).relu()
        self.features["output"] = out
        self.features.setdefault("shape", tuple(x.shape))
        return out


@dataclass
class Memory:
    mean: torch.Tensor | None = None
    steps: int = 0


class DataclassMemory(Block):
    def __init__(self):
        super().__init__()
        self.memory = Memory()

    def forward(self, x):
        mean = x.detach().mean(0)
        self.memory.mean = mean if self.memory.mean is None else 0.9 * self.memory.mean + 0.1 * mean
        self.memory.steps += 1
        return self.linear(x - self.memory.mean)


class Statistics(NamedTuple):
    low: torch.Tensor
    high: torch.Tensor


class NamedTupleKept(Block):
    stats = None

    def forward(self, x):
        self.stats = Statistics(x.detach().amin(), x.detach().amax())
        return self.linear(x) / (self.stats.high - self.stats.low + 1)


class AverageReplaced(Block):
    def __init__(self):
        super().__init__()
        self.register_buffer("average", torch.zeros(WIDTH))

    def forward(self, x):
        if self.training:
            self.average = 0.9 * self.average + 0.1 * x.detach().mean(0)
        return self.linear(x) - self.average


class AverageInPlace(Block):
    def __init__(self):
        super().__init__()
        self.register_buffer("average", torch.zeros(WIDTH))
        self.register_buffer("steps", torch.tensor(0))

    def forward(self, x):
        if self.training:
            with torch.no_grad():
                self.average.mul_(0.9).add_(x.mean(0), alpha=0.1)
                self.steps += 1
        return self.linear(x) - self.average


class TeacherAverage(Block):
    """Keeps a moving average of its own weights, as self-supervised methods do."""

    def __init__(self):
        super().__init__()
        self.teacher = nn.Linear(WIDTH, WIDTH)
        for parameter in self.teacher.parameters():
            parameter.requires_grad = False

    @torch.no_grad()
    def update(self):
        for slow, fast in zip(self.teacher.parameters(), self.linear.parameters(), strict=True):
            slow.data = slow.data * 0.9 + fast.data * 0.1

    def forward(self, x):
        if self.training:
            self.update()
        with torch.no_grad():
            target = self.teacher(x)
        return self.linear(x) - target


class TeacherInPlace(TeacherAverage):
    @torch.no_grad()
    def update(self):
        for slow, fast in zip(self.teacher.parameters(), self.linear.parameters(), strict=True):
            slow.data.mul_(0.9).add_(fast.data, alpha=0.1)


class MaskBySize(Block):
    def __init__(self):
        super().__init__()
        self.register_buffer("mask", torch.empty(0, 0), persistent=False)

    def forward(self, x):
        n = x.shape[0]
        if self.mask.shape[0] < n:
            self.mask = torch.ones(n, n).tril()
        return self.mask[:n, :n] @ self.linear(x)


class TableRegisteredLate(Block):
    def forward(self, x):
        if not hasattr(self, "table"):
            self.register_buffer("table", torch.linspace(0, 1, WIDTH), persistent=False)
        return self.linear(x) * self.table


class CacheBySize(Block):
    def __init__(self):
        super().__init__()
        self._cache = {}

    def positions(self, n):
        if n not in self._cache:
            self._cache[n] = torch.arange(n, dtype=torch.float32)[:, None] / n
        return self._cache[n]

    def forward(self, x):
        return self.linear(x) + self.positions(x.shape[0])


class LayerMadeLate(Block):
    def __init__(self):
        super().__init__()
        self.projection = None

    def forward(self, x):
        if self.projection is None:
            self.projection = nn.Linear(WIDTH, WIDTH)
            nn.init.constant_(self.projection.weight, 0.1)
            nn.init.zeros_(self.projection.bias)
        return self.projection(self.linear(x))


class Counter(Block):
    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return self.linear(x) * (0.5 if self.calls > 2 else 1.0)


class WarmUp(Block):
    def __init__(self):
        super().__init__()
        self.step, self.scale = 0, 0.0

    def forward(self, x):
        self.scale = min(1.0, self.step / 3)
        self.step += 1
        return x + self.scale * self.linear(x)


class DequeOfFrames(Block):
    def __init__(self):
        super().__init__()
        self.frames = deque(maxlen=2)

    def forward(self, x):
        self.frames.append(x.detach().mean(0))
        return self.linear(x) + sum(self.frames) / len(self.frames)


class LossKept(Block):
    """Leaves a loss for the training loop to pick up, as mixture-of-experts and quantizing layers do."""

    def __init__(self):
        super().__init__()
        self.losses = []

    def forward(self, x):
        out = self.linear(x)
        self.losses = [out.pow(2).mean()]
        self.aux_loss = self.losses[0] + x.abs().mean()
        return out


class CacheGrown(Block):
    cache = None

    def reset(self):
        self.cache = None

    def forward(self, x):
        keys = self.linear(x).mean(0, keepdim=True).detach()
        self.cache = keys if self.cache is None else torch.cat([self.cache, keys])[-3:]
        return x @ self.cache.T @ self.cache


class Swapped(Block):
    def __init__(self):
        super().__init__()
        self.front, self.back = torch.zeros(WIDTH), torch.ones(WIDTH)

    def forward(self, x):
        self.front, self.back = self.back, self.front
        return self.linear(x) + self.front


class FeatureHook(Block):
    def __init__(self):
        super().__init__()
        self.collected = {}
        self.linear.register_forward_hook(self.collect("linear"))

    def collect(self, name):
        def hook(module, inputs, output):
            self.collected[name] = output.detach()

        return hook

    def forward(self, x):
        out = self.linear(x)
        return out + self.collected["linear"].mean()


class ScalingPreHook(Block):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(WIDTH) * 0.5)
        self.linear.register_forward_pre_hook(lambda module, args: (args[0] * self.scale,))

    def forward(self, x):
        return self.linear(x)


class SpectralNorm(Block):
    def __init__(self):
        super().__init__()
        self.linear = nn.utils.spectral_norm(self.linear)

    def forward(self, x):
        return self.linear(x)


class WeightNorm(Block):
    def __init__(self):
        super().__init__()
        self.linear = nn.utils.parametrizations.weight_norm(self.linear)

    def forward(self, x):
        return self.linear(x).tanh()


class EqualizedWeight(Block):
    """Sets the weight anew before each call, as generators of images do."""

    class Hook:
        def __call__(self, module, inputs):
            module.weight = module.weight_orig * 0.7

    def __init__(self):
        super().__init__()
        weight = self.linear.weight
        del self.linear._parameters["weight"]
        self.linear.register_parameter("weight_orig", nn.Parameter(weight.data))
        self.linear.weight = weight.data
        self.linear.register_forward_pre_hook(self.Hook())

    def forward(self, x):
        return self.linear(x)


class PrintingHook(Block):
    def __init__(self):
        super().__init__()
        self.linear.register_forward_hook(lambda module, args, out: print("hook", tuple(out.shape)))

    def forward(self, x):
        return self.linear(x)


class GradientHook(Block):
    def __init__(self):
        super().__init__()
        self.norms = []

    def forward(self, x):
        out = self.linear(x)
        if out.requires_grad:
            out.register_hook(lambda grad: self.norms.append(round(float(grad.norm()), 3)))
        return out * 2


class GradientClamp(Block):
    def forward(self, x):
        out = self.linear(x)
        if out.requires_grad:
            out.register_hook(lambda grad: grad.clamp(-0.5, 0.5))
        return out * 2


class BackwardHook(Block):
    def __init__(self):
        super().__init__()
        self.seen = 0
        self.linear.register_full_backward_hook(self.count)

    def count(self, module, grad_input, grad_output):
        self.seen += 1

    def forward(self, x):
        return self.linear(x)


BLOCKS = [
    AttentionKept, RecurrentState, HistoryList, FeatureDict, DataclassMemory, NamedTupleKept, AverageReplaced,
    AverageInPlace, TeacherAverage, TeacherInPlace, MaskBySize, TableRegisteredLate, CacheBySize, LayerMadeLate,
    Counter, WarmUp, DequeOfFrames, LossKept, CacheGrown, Swapped, FeatureHook, ScalingPreHook, SpectralNorm,
    WeightNorm, EqualizedWeight, PrintingHook, GradientHook, GradientClamp, BackwardHook,
]  # fmt: skip
