"""Habits of how modules are put together: sharing, arguments, containers, in-place steps, ways to return."""

import copy
import functools
import types
from abc import ABC, abstractmethod
from collections import OrderedDict
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from tests.habits.storing import WIDTH, Block


class ResidualInPlace(Block):
    def forward(self, x):
        out = x.clone()
        out += self.linear(x)
        return out.relu_()


class ColumnWritten(Block):
    def forward(self, x):
        out = self.linear(x)
        out[:, 0] = x[:, 1] * 2
        out[:, 2:].mul_(0.5)
        return out


class MaskFilled(Block):
    def __init__(self):
        super().__init__()
        self.act = nn.ReLU(inplace=True)

    def forward(self, x):
        scores = self.linear(x)
        scores.masked_fill_(x < 0, -1.0)
        return self.act(scores)


class SharedTwice(Block):
    def __init__(self):
        super().__init__()
        self.first = self.second = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return self.second(self.first(x).relu()) + self.linear(x)


class TiedWeights(Block):
    def __init__(self):
        super().__init__()
        self.decoder = nn.Linear(WIDTH, WIDTH)
        self.decoder.weight = self.linear.weight

    def forward(self, x):
        return self.decoder(self.linear(x))


class Sublayer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, x, sublayer):
        return x + sublayer(self.norm(x))


class ModuleAsArgument(Block):
    def __init__(self):
        super().__init__()
        self.sublayers = nn.ModuleList([Sublayer(), Sublayer()])
        self.act = nn.GELU()

    def forward(self, x):
        x = self.sublayers[0](x, self.linear)
        return self.sublayers[1](x, lambda y: self.act(self.linear(y)))


class ModulesChosenByName(Block):
    def __init__(self):
        super().__init__()
        self.acts = nn.ModuleDict({"relu": nn.ReLU(), "tanh": nn.Tanh()})
        self.kind = "tanh"

    def forward(self, x):
        return self.acts[self.kind](self.linear(x))


class LayersByName(Block):
    def __init__(self):
        super().__init__()
        for number in range(2):
            setattr(self, f"layer{number}", nn.Linear(WIDTH, WIDTH))

    def forward(self, x):
        for number in range(2):
            x = getattr(self, f"layer{number}")(x)
        return x


class ParametersInLists(Block):
    def __init__(self):
        super().__init__()
        self.scales = nn.ParameterList([nn.Parameter(torch.ones(WIDTH)) for _ in range(2)])
        self.by_name = nn.ParameterDict({"shift": nn.Parameter(torch.zeros(WIDTH))})

    def forward(self, x):
        for scale in self.scales:
            x = self.linear(x) * scale
        return x + self.by_name["shift"]


class PlainListOfModules(Block):
    def __init__(self):
        super().__init__()
        self.steps = [self.linear, torch.tanh, functools.partial(torch.clamp, min=-0.5)]

    def forward(self, x):
        for step in self.steps:
            x = step(x)
        return x


class Norm(Enum):
    NONE = "none"
    L2 = "l2"


class EnumSetting(Block):
    norm = Norm.L2

    def forward(self, x):
        match self.norm:
            case Norm.NONE:
                return self.linear(x)
            case Norm.L2:
                return nn.functional.normalize(self.linear(x), dim=-1)


class Abstract(Block, ABC):
    @abstractmethod
    def transform(self, x): ...

    def forward(self, x):
        return self.transform(self.linear(x))


class Concrete(Abstract):
    @property
    def factor(self):
        return 0.5

    @staticmethod
    def squash(x):
        return x.tanh()

    def transform(self, x):
        return self.squash(x) * self.factor


class Inherits(Concrete):
    def forward(self, x):
        return super().forward(x) + 1


class ForwardChosen(Block):
    def __init__(self):
        super().__init__()
        self.forward = self.forward_second

    def forward_second(self, x):
        return self.linear(x) * 2


class ForwardPatched(Block):
    def __init__(self):
        super().__init__()
        self.linear.forward = types.MethodType(
            lambda module, x: nn.functional.linear(x, module.weight * 2, module.bias), self.linear
        )

    def forward(self, x):
        return self.linear(x)


def scaled(factor):
    def decorate(function):
        @functools.wraps(function)
        def call(self, x):
            return function(self, x) * factor

        return call

    return decorate


class Decorated(Block):
    @scaled(0.5)
    def forward(self, x):
        return self.linear(x)


@contextmanager
def frozen(module):
    before = [parameter.requires_grad for parameter in module.parameters()]
    for parameter in module.parameters():
        parameter.requires_grad_(False)
    yield
    for parameter, was in zip(module.parameters(), before, strict=True):
        parameter.requires_grad_(was)


class FrozenForNow(Block):
    def __init__(self):
        super().__init__()
        self.critic = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        with frozen(self.critic):
            guide = self.critic(x)
        return self.linear(x) + guide


class Checkpointed(Block):
    def forward(self, x):
        return checkpoint(self.linear, x, use_reentrant=False)


class NoGradPart(Block):
    def forward(self, x):
        with torch.set_grad_enabled(False):
            target = self.linear(x).softmax(-1)
        return self.linear(x) * target.detach()


class AutocastPart(Block):
    def forward(self, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = self.linear(x)
        return out.float()


class StraightThrough(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.round()

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return gradient * (x.abs() < 1).to(gradient)


class Quantized(Block):
    def forward(self, x):
        return StraightThrough.apply(self.linear(x) * 4) / 4


class GradientInside(Block):
    def forward(self, x):
        if not torch.is_grad_enabled():
            return self.linear(x)
        inner = x.detach().requires_grad_()
        energy = self.linear(inner).pow(2).sum()
        (force,) = torch.autograd.grad(energy, inner, create_graph=True)
        return x - 0.1 * force


class RowByRow(Block):
    def forward(self, x):
        return torch.stack([self.linear(row) for row in x])


class Generators(Block):
    def pieces(self, x):
        for number, row in enumerate(x.unbind(1)):
            yield row * number

    def forward(self, x):
        return self.linear(torch.stack(list(self.pieces(x)), 1))


class Recursive(Block):
    def descend(self, x, depth):
        return x if depth == 0 else self.descend(self.linear(x).tanh(), depth - 1)

    def forward(self, x):
        return self.descend(x, 3)


class DeviceOfParameters(Block):
    def forward(self, x):
        parameter = next(self.parameters())
        x = x.to(device=parameter.device, dtype=parameter.dtype)
        return self.linear(x) + torch.arange(WIDTH, device=x.device).type_as(x)


class OptionalArguments(Block):
    def inner(self, x, *extra, mask=None, scale: float = 1.0, **options):
        x = self.linear(x) * scale
        if mask is not None:
            x = x * mask
        return x + sum(extra) * options.get("weight", 0.5)

    def forward(self, x):
        return self.inner(x, x, 1, mask=x > 0, weight=0.25, name="unused")


class Attention(Block):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, 2, batch_first=True)

    def forward(self, x):
        out, self.weights = self.attention(x[None], x[None], x[None])
        return out[0]


class Encoder(Block):
    def __init__(self):
        super().__init__()
        self.encoder = nn.TransformerEncoderLayer(WIDTH, 2, 8, dropout=0.0, batch_first=True)

    def forward(self, x):
        return self.encoder(x[None])[0]


class Recurrent(Block):
    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(WIDTH, WIDTH, batch_first=True)

    def forward(self, x):
        self.rnn.flatten_parameters()
        out, _ = self.rnn(x[None])
        return out[0]


class Normed(Block):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(WIDTH)

    def forward(self, x):
        return self.norm(self.linear(x)) if x.shape[0] > 1 else self.linear(x)


class Codebook(Block):
    """Moves its codes towards what they were chosen for, in place and by data."""

    def __init__(self):
        super().__init__()
        self.register_buffer("codes", torch.randn(3, WIDTH))
        self.register_buffer("counts", torch.zeros(3))

    def forward(self, x):
        nearest = torch.cdist(x, self.codes).argmin(-1)
        one_hot = nn.functional.one_hot(nearest, 3).to(x)
        if self.training:
            with torch.no_grad():
                self.counts.mul_(0.9).add_(one_hot.sum(0), alpha=0.1)
                self.codes.data.lerp_(one_hot.T @ x, 0.01)
        quantized = self.codes[nearest]
        self.commitment = (x - quantized.detach()).pow(2).mean()
        return x + (quantized - x).detach()


class Fourier(Block):
    def forward(self, x):
        return torch.fft.irfft(torch.fft.rfft(self.linear(x)) * 0.5, n=WIDTH)


class Copies(Block):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(copy.deepcopy(self.linear) for _ in range(2))

    def forward(self, x):
        outputs = [layer(x) for layer in self.layers]
        return torch.stack(outputs).mean(0) if self.training else sum(outputs) / len(outputs)


@dataclass
class Output:
    value: torch.Tensor
    loss: torch.Tensor | None = None
    name: str = "output"


class NamedOutput(NamedTuple):
    value: torch.Tensor
    aux: list


class ObjectOutput:
    def __init__(self, value, hidden):
        self.value = value
        self.hidden = hidden


class DictOutput(OrderedDict):
    """Keys that are attributes, too."""

    def __getattr__(self, name):
        try:
            return self[name]
        except KeyError as error:
            raise AttributeError(name) from error


RETURNS = {
    "tensor": lambda x: x,
    "dict": lambda x: {"value": x, "loss": x.mean(), "rows": x.shape[0], "none": None},
    "tuple": lambda x: (x, [x.sum(0), x * 2], None),
    "dataclass": lambda x: Output(x, x.pow(2).mean()),
    "named": lambda x: NamedOutput(x, [x.mean(), 3]),
    "object": lambda x: ObjectOutput(x, (x.T, x)),
    "ordered": lambda x: DictOutput(value=x, norm=x.norm()),
    "view": lambda x: (x.view(-1), x[0]),
}
"""What a module makes of its last features."""

BLOCKS = [
    ResidualInPlace, ColumnWritten, MaskFilled, SharedTwice, TiedWeights, ModuleAsArgument, ModulesChosenByName,
    LayersByName, ParametersInLists, PlainListOfModules, EnumSetting, Concrete, Inherits, ForwardChosen, ForwardPatched,
    Decorated, FrozenForNow, Checkpointed, NoGradPart, AutocastPart, Quantized, GradientInside, RowByRow, Generators,
    Recursive, DeviceOfParameters, OptionalArguments, Attention, Encoder, Recurrent, Normed, Codebook, Fourier, Copies,
]  # fmt: skip
