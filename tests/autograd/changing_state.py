"""Random programs over modules with Python state, changed at random between calls: compiled and eager must agree.

Run from the command line for as long as there is time:

    python -m tests.autograd.changing_state 0 10000
"""

import copy
import random
import sys
import types
import warnings
from dataclasses import dataclass, field

import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize

from precast.autograd import aot_module
from precast.compilers import nop

WIDTH = 3
TABLE = {"gain": 1.5, "powers": [1, 2]}
ACTS = {"relu": torch.relu, "tanh": torch.tanh, "sin": torch.sin, "none": lambda x: x}


@dataclass
class Config:
    scale: float = 2.0
    depth: int = 1
    act: str = "relu"
    extra: dict = field(default_factory=lambda: {"shift": 0.5, "rows": [1.0, 2.0]})


class Slotted:
    __slots__ = ("level",)

    def __init__(self):
        self.level = 1


class Adapted(nn.Module):
    """A linear layer with an adapter beside it, or merged into it."""

    def __init__(self):
        super().__init__()
        self.base = nn.Linear(WIDTH, WIDTH)
        self.down, self.up = nn.Linear(WIDTH, 1, bias=False), nn.Linear(1, WIDTH, bias=False)
        self.merged, self.active = False, True

    def merge(self, sign):
        with torch.no_grad():
            self.base.weight += sign * self.up.weight @ self.down.weight
        self.merged = sign > 0

    def forward(self, x):
        result = self.base(x)
        return result + self.up(self.down(x)) if self.active and not self.merged else result


class Program(nn.Module):
    """Runs its ``pieces``, methods by name, one after the other."""

    gain = 1.0

    def __init__(self, pieces):
        super().__init__()
        self.pieces = list(pieces)
        self.linear, self.other = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.norm, self.batch_norm, self.drop = nn.LayerNorm(WIDTH), nn.BatchNorm1d(WIDTH), nn.Dropout(0.3)
        self.adapted = Adapted()
        self.choices = nn.ModuleDict({"a": nn.Tanh(), "b": nn.Linear(WIDTH, WIDTH)})
        self.layers = nn.ModuleList([nn.Linear(WIDTH, WIDTH), nn.ReLU()])
        self.register_buffer("steps", torch.zeros(()))
        self.config, self.slotted = Config(), Slotted()
        self.weights = {"first": 1.0, "tensor": torch.ones(WIDTH)}
        self.count, self.factor, self.choice, self.gate = 0, 2, "a", None
        self.bonus = types.SimpleNamespace(values=(1, 2), last=None)
        self.functions = [lambda x: x * 1.5, torch.sin]

    def forward(self, x):
        for name in self.pieces:
            x = getattr(self, f"run_{name}")(x)
        return x

    def run_linear(self, x):
        return self.linear(x) * self.factor

    def run_other(self, x):
        return self.other(x) + self.gain

    def run_norms(self, x):
        return self.batch_norm(self.norm(x))

    def run_drop(self, x):
        return self.drop(x)

    def run_adapted(self, x):
        return self.adapted(x)

    def run_choice(self, x):
        return self.choices[self.choice](x)

    def run_layers(self, x):
        for layer in self.layers:
            x = layer(x)
        return x

    def run_config(self, x):
        for _ in range(self.config.depth):
            x = ACTS[self.config.act](x) * self.config.scale
        return x + self.config.extra["shift"] * sum(self.config.extra["rows"])

    def run_containers(self, x):
        return x * self.weights["first"] + self.weights["tensor"] * self.bonus.values[-1]

    def run_globals(self, x):
        return x * TABLE["gain"] + sum(TABLE["powers"])

    def run_count(self, x):
        self.count += 1
        self.steps += 1
        return x + self.count

    def run_slotted(self, x):
        return x * self.slotted.level if hasattr(self, "gate") and self.gate is not None else x

    def run_functions(self, x):
        for function in self.functions:
            x = function(x)
        return x

    def run_memory(self, x):
        result = x if self.bonus.last is None else x + self.bonus.last
        self.bonus.last = result.detach().mean()
        return result


PIECES = [name.removeprefix("run_") for name in vars(Program) if name.startswith("run_")]


def _set_parameter(module, chance):
    layer = chance.choice([module.linear, module.other])
    if not parametrize.is_parametrized(layer):
        layer.weight = nn.Parameter(torch.full((WIDTH, WIDTH), chance.random()).to(layer.weight.dtype))


def _swap(module, _):
    module.linear, module.other = module.other, module.linear


def _share(module, _):
    module.other = module.linear


def _tie(module, _):
    if not (parametrize.is_parametrized(module.linear) or parametrize.is_parametrized(module.layers[0])):
        module.layers[0].weight = module.linear.weight


def _parametrize(module, _):
    if parametrize.is_parametrized(module.other):
        parametrize.remove_parametrizations(module.other, "weight")
    else:
        parametrizations.weight_norm(module.other)


def _hook(module, chance):
    layer, scale = chance.choice([module.linear, module.norm, module.adapted.base]), chance.choice([2.0, 3.0])
    if layer._forward_hooks:
        layer._forward_hooks.popitem()
    else:
        layer.register_forward_hook(lambda _, args, output: output * scale)


def _merge(module, _):
    module.adapted.merge(-1 if module.adapted.merged else 1)


CHANGES = {
    "factor": lambda m, c: setattr(m, "factor", c.choice([1, 2, 3, 2.5, True])),
    "gain": lambda m, c: setattr(m, "gain", c.choice([0.5, 2.0])),
    "no gain": lambda m, c: vars(m).pop("gain", None),
    "scale": lambda m, c: setattr(m.config, "scale", c.random()),
    "depth": lambda m, c: setattr(m.config, "depth", c.randrange(3)),
    "act": lambda m, c: setattr(m.config, "act", c.choice(list(ACTS))),
    "config": lambda m, c: setattr(m, "config", Config(scale=c.random())),
    "rows": lambda m, c: m.config.extra["rows"].append(c.random()),
    "shift": lambda m, c: m.config.extra.update(shift=c.choice([0.5, -0.0, 0.0])),
    "first": lambda m, c: m.weights.update(first=c.choice([1, 1.0, 2.0])),
    "tensor": lambda m, c: m.weights.update(tensor=torch.full((WIDTH,), c.random())),
    "values": lambda m, c: setattr(m.bonus, "values", tuple(c.sample(range(5), 2))),
    "choice": lambda m, c: setattr(m, "choice", c.choice("ab")),
    "layer": lambda m, c: m.layers.__setitem__(1, c.choice([nn.Tanh, nn.ReLU, nn.Hardtanh])()),
    "functions": lambda m, c: c.shuffle(m.functions),
    "pieces": lambda m, c: c.shuffle(m.pieces),
    "one piece more": lambda m, c: m.pieces.append(c.choice(PIECES)),
    "gate": lambda m, c: setattr(m, "gate", c.choice([None, "open"])),
    "no gate": lambda m, c: vars(m).pop("gate", None),
    "level": lambda m, c: setattr(m.slotted, "level", c.randrange(4)),
    "probability": lambda m, c: setattr(m.drop, "p", c.choice([0.0, 0.5])),
    "eps": lambda m, c: setattr(m.norm, "eps", c.choice([1e-5, 0.1])),
    "momentum": lambda m, c: setattr(m.batch_norm, "momentum", c.choice([0.1, 0.5])),
    "count": lambda m, c: setattr(m, "count", c.randrange(9)),
    "train": lambda m, c: m.train(c.choice([True, False])),
    "mode of one": lambda m, c: c.choice([m.drop, m.batch_norm]).train(c.choice([True, False])),
    "frozen": lambda m, c: m.linear.requires_grad_(c.choice([True, False])),
    "active": lambda m, c: setattr(m.adapted, "active", c.choice([True, False])),
    "unrelated": lambda m, c: setattr(m, "comment", c.random()),
    "parameter": _set_parameter,
    "swap": _swap,
    "share": _share,
    "tie": _tie,
    "parametrization": _parametrize,
    "hook": _hook,
    "merge": _merge,
}


def _observed(module):
    """What a caller can see of a module beside its results."""
    memory = module.bonus.last
    return [*module.buffers(), torch.tensor(module.count), torch.zeros(()) if memory is None else memory]


def _called(module, x, seed):
    torch.manual_seed(seed)
    result = module(x)
    if not result.requires_grad:
        return [result]
    parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
    gradients = torch.autograd.grad(result.sum(), parameters, allow_unused=True)
    return [result, *(torch.zeros(()) if each is None else each for each in gradients)]


def run_sequence(seed, steps=6):
    """Change and call; an AssertionError tells the changes made so far."""
    chance = random.Random(seed)
    torch.manual_seed(seed)
    TABLE.update(gain=1.5, powers=[1, 2])
    eager = Program(chance.choices(PIECES, k=chance.randint(1, 6)))
    module = copy.deepcopy(eager)
    compiled = aot_module(module, nop)
    made = [f"pieces {eager.pieces}"]
    for step in range(steps):
        x = torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(seed + step))
        with torch.set_grad_enabled(chance.random() < 0.7), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ours, theirs = (_called(each, x, step) for each in (compiled, eager))
        for left, right in zip([*ours, *_observed(module)], [*theirs, *_observed(eager)], strict=True):
            assert left.dtype == right.dtype, (seed, made)
            assert torch.allclose(left, right, 1e-5, 1e-6, equal_nan=True), (seed, made)
        for name in chance.sample(list(CHANGES), k=chance.randint(0, 3)):
            change_seed = chance.random()
            for each in (eager, module):
                CHANGES[name](each, random.Random(change_seed))
            made.append(name)
        if chance.random() < 0.2:
            TABLE["gain"] = chance.random()
            TABLE["powers"].append(chance.randrange(3))
            made.append("globals")


if __name__ == "__main__":
    first, last = map(int, sys.argv[1:])
    for number in range(first, last):
        run_sequence(number)
        if number % 50 == 49:
            print(number + 1, "sequences", flush=True)
