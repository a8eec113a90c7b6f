"""Parts of random programs, each with Python state of its own kind and the changes that can happen to it."""

import dataclasses
import functools
import types
from array import array
from collections import ChainMap, OrderedDict, deque
from operator import attrgetter

import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize

WIDTH = 3
TABLE = {"gain": 1.5, "powers": [1, 2]}
SWITCH = True
ACTS = {"relu": torch.relu, "tanh": torch.tanh, "sin": torch.sin, "none": lambda x: x}


class Linear(nn.Module):
    """A layer whose parameters are replaced, frozen, shared and parametrized, and a factor."""

    def __init__(self):
        super().__init__()
        self.layer, self.factor = nn.Linear(WIDTH, WIDTH), 2

    def forward(self, x):
        return self.layer(x) * self.factor

    def _is_plain(self):
        return isinstance(self.layer, nn.Linear) and not parametrize.is_parametrized(self.layer)

    def change_factor(self, chance):
        self.factor = chance.choice([1, 2, 3, 2.5, True])

    def change_parameter(self, chance):
        if self._is_plain():
            kind = self.layer.weight.dtype
            self.layer.weight = nn.Parameter(torch.full((WIDTH, WIDTH), chance.random(), dtype=kind))

    def change_bias(self, chance):
        if self._is_plain():
            bias = torch.full((WIDTH,), chance.random(), dtype=self.layer.weight.dtype)
            self.layer.bias = chance.choice([None, nn.Parameter(bias)])

    def change_data(self, chance):
        with torch.no_grad():
            next(self.layer.parameters()).mul_(chance.random())

    def change_frozen(self, chance):
        self.layer.requires_grad_(chance.choice([True, False]))

    def change_parametrization(self, chance):
        if parametrize.is_parametrized(self.layer):
            parametrize.remove_parametrizations(self.layer, "weight")
        elif self._is_plain():
            parametrizations.weight_norm(self.layer)

    def change_layer(self, chance):
        kind = next(self.layer.parameters()).dtype
        self.layer = (
            chance.choice([nn.Tanh(), nn.Linear(WIDTH, WIDTH).to(kind)]) if chance.random() < 0.3 else self.layer
        )
        if isinstance(self.layer, nn.Tanh):
            self.layer = nn.Sequential(self.layer, nn.Linear(WIDTH, WIDTH, bias=False).to(kind))


class Norms(nn.Module):
    """Layers with numbers and buffers of their own."""

    def __init__(self):
        super().__init__()
        self.norm, self.batch_norm, self.drop = nn.LayerNorm(WIDTH), nn.BatchNorm1d(WIDTH), nn.Dropout(0.3)

    def forward(self, x):
        return self.drop(self.batch_norm(self.norm(x)))

    def change_probability(self, chance):
        self.drop.p = chance.choice([0.0, 0.5])

    def change_eps(self, chance):
        self.norm.eps = chance.choice([1e-5, 0.1])

    def change_momentum(self, chance):
        self.batch_norm.momentum = chance.choice([0.1, 0.5, None])

    def change_mode(self, chance):
        chance.choice([self.drop, self.batch_norm]).train(chance.choice([True, False]))

    def change_buffer(self, chance):
        self.batch_norm.running_mean = torch.full_like(self.batch_norm.running_mean, chance.random())


class Adapted(nn.Module):
    """A linear layer with an adapter beside it, or merged into it."""

    def __init__(self):
        super().__init__()
        self.base = nn.Linear(WIDTH, WIDTH)
        self.down, self.up = nn.Linear(WIDTH, 1, bias=False), nn.Linear(1, WIDTH, bias=False)
        self.merged, self.active = False, True

    def forward(self, x):
        result = self.base(x)
        return result + self.up(self.down(x)) if self.active and not self.merged else result

    def change_merged(self, chance):
        sign = -1 if self.merged else 1
        with torch.no_grad():
            self.base.weight += sign * self.up.weight @ self.down.weight
        self.merged = not self.merged

    def change_active(self, chance):
        self.active = chance.choice([True, False])


class Choice(nn.Module):
    """Submodules chosen by name, listed, exchanged, taken away and shared."""

    def __init__(self):
        super().__init__()
        self.choices = nn.ModuleDict({"a": nn.Tanh(), "b": nn.Linear(WIDTH, WIDTH)})
        self.layers = nn.ModuleList([nn.Linear(WIDTH, WIDTH), nn.ReLU()])
        self.choice = "a"

    def forward(self, x):
        x = self.choices[self.choice](x)
        for layer in self.layers:
            x = layer(x)
        return x

    def change_choice(self, chance):
        self.choice = chance.choice("ab")

    def change_exchanged(self, chance):
        self.layers[-1] = chance.choice([nn.Tanh, nn.ReLU, nn.Hardtanh])()

    def change_appended(self, chance):
        self.layers.append(chance.choice([nn.Tanh(), self.choices["b"]]))

    def change_removed(self, chance):
        if len(self.layers) > 1:
            del self.layers[0]

    def change_tied(self, chance):
        linears = [layer for layer in self.layers if isinstance(layer, nn.Linear)]
        if linears:
            linears[0].weight = self.choices["b"].weight

    def change_swapped(self, chance):
        self.layers = nn.ModuleList(reversed(self.layers))

    def change_class(self, chance):
        if isinstance(self.layers[-1], (nn.Tanh, nn.Sigmoid)):
            self.layers[-1].__class__ = chance.choice([nn.Tanh, nn.Sigmoid])


@dataclasses.dataclass
class Config:
    scale: float = 2.0
    depth: int = 1
    act: str = "relu"
    extra: dict = dataclasses.field(default_factory=lambda: {"shift": 0.5, "rows": [1.0, 2.0]})


class Configured(nn.Module):
    """Settings in a plain object, in containers in it, and on the class."""

    gain = 1.0

    def __init__(self):
        super().__init__()
        self.config, self.linear = Config(), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        for _ in range(self.config.depth):
            x = ACTS[self.config.act](self.linear(x)) * self.config.scale
        return x + self.config.extra["shift"] * sum(self.config.extra["rows"]) * self.gain

    def change_scale(self, chance):
        self.config.scale = chance.random()

    def change_depth(self, chance):
        self.config.depth = chance.randrange(3)

    def change_act(self, chance):
        self.config.act = chance.choice(list(ACTS))

    def change_config(self, chance):
        self.config = Config(scale=chance.random())

    def change_rows(self, chance):
        self.config.extra["rows"].append(chance.random())

    def change_shift(self, chance):
        self.config.extra.update(shift=chance.choice([0.5, -0.0, 0.0]))

    def change_gain(self, chance):
        if chance.random() < 0.5:
            self.gain = chance.choice([0.5, 2.0])
        else:
            vars(self).pop("gain", None)


class Slotted:
    __slots__ = ("level",)

    def __init__(self):
        self.level = 1


class Holding(nn.Module):
    """Containers of all kinds, slots, functions, closures, defaults and partial functions."""

    def __init__(self):
        super().__init__()
        self.weights = {"first": 1.0, "tensor": torch.ones(WIDTH)}
        self.bonus = types.SimpleNamespace(values=(1, 2), last=None)
        self.recent, self.order, self.marks = deque([1.0, 2.0], 2), OrderedDict(a=1.0, b=2.0), {1, 2}
        self.slotted, self.gate, self.limit = Slotted(), None, 1.5
        self.functions = [lambda x, limit=1.5: x.clamp(max=limit), functools.partial(torch.mul, other=1.5)]

    def forward(self, x):
        for function in self.functions:
            x = function(x)
        if hasattr(self, "gate") and self.gate is not None:
            x = x * self.slotted.level
        x = x * self.weights["first"] + self.weights["tensor"] * self.bonus.values[-1]
        return x + sum(self.recent) - next(iter(self.order.values())) + len(self.marks)

    def change_first(self, chance):
        self.weights.update(first=chance.choice([1, 1.0, 2.0]))

    def change_tensor(self, chance):
        self.weights.update(tensor=torch.full((chance.choice([1, WIDTH]),), chance.random()))

    def change_values(self, chance):
        self.bonus.values = tuple(chance.sample(range(5), 2))

    def change_recent(self, chance):
        self.recent.append(chance.random())

    def change_order(self, chance):
        self.order.move_to_end(chance.choice("ab"))

    def change_marks(self, chance):
        self.marks.symmetric_difference_update({chance.randrange(4)})

    def change_gate(self, chance):
        if chance.random() < 0.7:
            self.gate = chance.choice([None, "open"])
        else:
            vars(self).pop("gate", None)

    def change_level(self, chance):
        self.slotted.level = chance.randrange(4)

    def change_functions(self, chance):
        limit = chance.random()
        made = [torch.sin, lambda x: x.clamp(max=limit), functools.partial(torch.mul, other=limit)]
        self.functions[chance.randrange(2)] = chance.choice(made)

    def change_defaults(self, chance):
        for function in self.functions:
            if getattr(function, "__defaults__", None):
                function.__defaults__ = (chance.random(),)


class Counting(nn.Module):
    """State that the program itself writes: numbers, buffers, tensors kept from call to call, a log."""

    def __init__(self):
        super().__init__()
        self.count, self.memory, self.log = 0, types.SimpleNamespace(last=None), []
        self.register_buffer("steps", torch.zeros(()))

    def forward(self, x):
        self.count += 1
        self.steps += 1
        result = x + self.count if self.memory.last is None else x + self.memory.last
        self.memory.last = result.detach().mean()
        self.log.append(result.detach().sum())
        return result

    def change_count(self, chance):
        self.count = chance.randrange(9)

    def change_memory(self, chance):
        self.memory.last = None

    def change_log(self, chance):
        self.log.clear()


class Globals(nn.Module):
    """Globals, and a forward that is exchanged."""

    def forward(self, x):
        return x * TABLE["gain"] + sum(TABLE["powers"]) if SWITCH else x - 1

    def change_forward(self, chance):
        if "forward" in vars(self):
            del self.forward
        else:
            scale = chance.random()
            self.forward = lambda x: x * scale

    def change_unrelated(self, chance):
        self.comment = chance.random()


class Measure:
    """What Python reads of a class by itself."""

    level = 1.0

    def __len__(self):
        return 2

    def __iter__(self):
        return iter((1.0, 0.5))

    def __add__(self, other):
        return other + self.level


_LENGTHS = [Measure.__len__, lambda self: 1, lambda self: 3]
_ITERATIONS = [Measure.__iter__, lambda self: iter(()), lambda self: iter((self.level, 2.0))]
_ADDITIONS = [Measure.__add__, lambda self, other: other - self.level, lambda self, other: other]


class Unnamed(nn.Module):
    """State that no code names where it is read: special methods, patterns, getters, memory."""

    def __init__(self):
        super().__init__()
        self.measure, self.config, self.read = Measure(), Config(), attrgetter("config.scale")
        self.numbers, self.chain = array("d", [1.0]), ChainMap({}, {"gain": 1.0})

    def forward(self, x):
        x = (self.measure + x) * len(self.measure) - sum(self.measure)
        match self.config:
            case Config(_, 1):
                x = x * 2
            case Config(act=act):
                x = ACTS[act](x)
        return x * self.read(self) + self.numbers[0] * self.chain["gain"]

    def change_length(self, chance):
        Measure.__len__ = chance.choice(_LENGTHS)

    def change_iteration(self, chance):
        Measure.__iter__ = chance.choice(_ITERATIONS)

    def change_addition(self, chance):
        Measure.__add__ = chance.choice(_ADDITIONS)

    def change_level(self, chance):
        self.measure.level = chance.random()

    def change_depth(self, chance):
        self.config.depth = chance.randrange(3)

    def change_act(self, chance):
        self.config.act = chance.choice(list(ACTS))

    def change_scale(self, chance):
        self.config.scale = chance.random()

    def change_numbers(self, chance):
        self.numbers[0] = chance.random()

    def change_chain(self, chance):
        self.chain.maps[chance.randrange(2)]["gain"] = chance.random()


class Level:
    """Attributes that come from a class: objects, subclasses and modules may hide them."""

    gain, spare = 1.0, 0

    def shifted(self, x):
        return x + self.gain


class Below(Level):
    idle = 0


class Layer(nn.Module):
    gain, spare = 1.0, 0

    def shifted(self, x):
        return x - self.gain


class Hidden(Layer):
    """As many names as before, but others: one that nobody reads goes, and one comes that hides a class's."""

    def __init__(self):
        super().__init__()
        self.plain, self.inner, self.linear = Below(), Layer(), nn.Linear(WIDTH, WIDTH)
        for holder in (self, self.plain, self.inner, self.linear):
            holder.spare = 0

    def forward(self, x):
        x = self.inner.shifted(self.plain.shifted(self.linear(x))) * self.gain
        return x * getattr(self.plain, "limit", 1.0) * max(2.0, len(x.shape)) * Below.gain

    def _exchange(self, holder, name, value):
        """Let a name come, or go again, with as many names as before."""
        for going, coming in (("spare", name), (name, "spare")):
            if going in vars(holder):
                delattr(holder, going)
                setattr(holder, coming, value)
                return

    def change_own_name(self, chance):
        self._exchange(self, "gain", chance.random())

    def change_name_of_object(self, chance):
        self._exchange(self.plain, chance.choice(["gain", "limit"]), chance.random())

    def change_method(self, chance):
        scale = chance.random()
        self._exchange(chance.choice([self.plain, self.inner]), "shifted", lambda x: x * scale)

    def change_forward(self, chance):
        scale = chance.random()
        self._exchange(self.linear, "forward", lambda x: x * scale)

    def change_twice(self, chance):
        holder = chance.choice([self, self.plain, self.inner])
        self._exchange(holder, "gain", chance.random())
        last = next(reversed(vars(holder)))
        setattr(holder, last, vars(holder).pop(last))

    # Both programs change what they share: the second time nothing is to be left to do.
    def change_subclass(self, chance):
        going, coming = chance.choice([("idle", "gain"), ("gain", "idle")])
        if going in vars(Below):
            delattr(Below, going)
        setattr(Below, coming, chance.random())

    def change_dictionary(self, chance):
        holder = chance.choice([self, self.plain, self.inner])
        holder.__dict__ = {**vars(holder), "gain": chance.random()}

    def change_builtin(self, chance):
        globals().pop("max", None)
        if chance.random() < 0.5:
            globals()["max"] = lambda *values: 5.0


PARTS = [Unnamed, Linear, Norms, Adapted, Choice, Configured, Holding, Counting, Globals, Hidden]


def reset():
    """Let all state outside of modules be as it was at first."""
    global SWITCH
    globals().pop("max", None)
    if "gain" in vars(Below):
        del Below.gain
        Below.idle = 0
    TABLE.update(gain=1.5, powers=[1, 2])
    SWITCH = True
    Measure.__len__, Measure.__iter__, Measure.__add__ = _LENGTHS[0], _ITERATIONS[0], _ADDITIONS[0]


def changes_of(part):
    """The names of the changes that can happen to a part."""
    return [name for name in dir(type(part)) if name.startswith("change_")]
