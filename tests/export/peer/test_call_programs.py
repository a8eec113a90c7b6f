"""State, constants, names, and trees of arguments: both exporters write the same signature and take the same calls."""

from collections import namedtuple
from dataclasses import dataclass

import pytest
import torch
from torch import nn

from precast.export import register_dataclass
from tests.export.peer.comparison import LENIENT, STRICT, WRITES, Case, differences, module

ONES, RANDOM = torch.ones, torch.randn
Pair = namedtuple("Pair", ["a", "b"])


@dataclass
class Batch:
    ids: torch.Tensor
    mask: object = None


register_dataclass(Batch, serialized_type_name="tests.peer.Batch")


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3)
        self.second.weight = self.first.weight

    def forward(self, x):
        return self.second(self.first(x))


class Unused(nn.Module):
    """Parameters, buffers of both kinds and constants, some of which nothing reads."""

    def __init__(self):
        super().__init__()
        self.used, self.unused = nn.Linear(3, 3), nn.Linear(3, 3)
        self.register_buffer("kept", ONES(2))
        self.register_buffer("scratch", ONES(3), persistent=False)
        self.constant, self.unread = ONES(3), ONES(3)

    def forward(self, x):
        return self.used(x) + self.scratch + self.constant


class Counting(nn.Module):
    def __init__(self, *, persistent=True):
        super().__init__()
        self.register_buffer("count", torch.zeros(1), persistent=persistent)

    def forward(self, x):
        self.count.add_(1)
        return x + self.count


class Assigning(Counting):
    def forward(self, x):
        self.count = self.count + 1
        return x + self.count


class Clashing(nn.Module):
    def __init__(self):
        super().__init__()
        self.p_x, self.x, self.b_b = (nn.Parameter(ONES(3)) for _ in range(3))
        self.register_buffer("b", ONES(3))

    def forward(self, p_x, b_b):
        return p_x + self.p_x + self.x + self.b + b_b + self.b_b


class Containers(nn.Module):
    def __init__(self):
        super().__init__()
        self.rows, self.named = [ONES(3), ONES(3) * 2], {"a": ONES(3)}

    def forward(self, x):
        return x + self.rows[0] + self.rows[1] + self.named["a"]


class Upper(nn.Module):
    def __init__(self):
        super().__init__()
        self.Head = nn.Linear(3, 3)
        self.self_attn = nn.Linear(3, 3)

    def forward(self, X):  # noqa: N803
        return self.self_attn(self.Head(X))


def case(forward, *args, **options):
    return Case(module(forward), args, **options)


def call(*args, **kwargs):
    return args, kwargs


X = RANDOM(2, 3)
CASES = {
    "tied parameters": Case(Tied, (X,), differs=dict.fromkeys(("placeholders", "inputs"), "one input for each tensor")),
    "unused state": Case(Unused, (X,)),
    "a counter": Case(Counting, (X,), differs=WRITES),
    "a counter that is not saved": Case(lambda: Counting(persistent=False), (X,), differs=WRITES),
    "a buffer that is assigned": Case(Assigning, (X,), differs=WRITES),
    "a counter, decomposed": Case(Counting, (X,), decomposed=True),
    "a buffer that is assigned, decomposed": Case(Assigning, (X,), decomposed=True),
    "clashing names": Case(Clashing, (RANDOM(3), RANDOM(3))),
    "constants in containers": Case(Containers, (X,)),
    "constants": case(lambda self, x: x + torch.tensor([1.0, 2.0, 3.0]) + torch.tensor(3), X),
    "names in capitals": Case(Upper, (X,)),
    "nested layers": Case(lambda: nn.Sequential(nn.Linear(3, 3), nn.Sequential(nn.ReLU(), nn.Linear(3, 2))), (X,)),
    "layers in a list": Case(
        module(
            lambda self, x: self.layers[1](self.layers[0](x)),
            layers=lambda: nn.ModuleList([nn.Linear(3, 3), nn.Linear(3, 3)]),
        ),
        (X,),
    ),
    "an input that is written": case(lambda self, x: x.add_(1), ONES(3), differs=WRITES),
    "an input in a list that is written": case(lambda self, x: x[0].mul_(2) + x[1], [ONES(3), ONES(3)], differs=WRITES),
    "a view that is written": case(lambda self, x: x[0].add_(1), ONES(3, 2), differs=WRITES),
    "an input that is written, decomposed": case(lambda self, x: x.add_(1), ONES(3), decomposed=True),
    "namedtuple": case(lambda self, p: Pair(p.a + 1, p.b), Pair(ONES(2), ONES(3))),
    "dataclass": case(lambda self, b: Batch(b.ids + 1, b.mask), Batch(ONES(2), ONES(3))),
    "dataclass with None": case(lambda self, b: Batch(b.ids + 1, b.mask), Batch(ONES(2))),
    "None": case(lambda self, x, y: x + 1 if y is None else x + y, ONES(2), None, calls=[call(ONES(2), None)]),
    "None by default": case(
        lambda self, x, y=None: x + 1 if y is None else x + y, ONES(2), calls=[call(ONES(2), ONES(2))]
    ),
    "text": case(lambda self, x, m: x + 1 if m == "a" else x - 1, ONES(2), "a", calls=[call(ONES(2), "b")]),
    "flag": case(lambda self, x, m: x + 1 if m else x - 1, ONES(2), True, calls=[call(ONES(2), False)]),
    "float": case(lambda self, x, m: x + m, ONES(2), 2.5, calls=[call(ONES(2), 2.5), call(ONES(2), 3.5)]),
    "dict in another order": case(
        lambda self, d: d["a"] - d["b"],
        {"a": ONES(2), "b": ONES(2) * 3},
        calls=[call({"b": ONES(2) * 5, "a": ONES(2)})],
    ),
    "nested dicts in another order": case(
        lambda self, d: d["n"][0]["a"] - d["z"],
        {"n": [{"a": ONES(2), "b": 1}], "z": ONES(2)},
        calls=[call({"z": ONES(2) * 5, "n": [{"b": 1, "a": ONES(2)}]})],
        differs={"call 1": "dicts are matched by key, inside of others too"},
    ),
    "keywords in another order": Case(
        module(lambda self, a, b: a - b), (), {"a": ONES(2), "b": ONES(2) * 3}, calls=[call(b=ONES(2) * 5, a=ONES(2))]
    ),
    "a keyword by position": Case(
        module(lambda self, a, b: a - b),
        (ONES(2),),
        {"b": ONES(2)},
        calls=[call(ONES(2), ONES(2) * 5)],
        differs={"call 1": LENIENT},
    ),
    "a position by keyword": case(
        lambda self, a, b: a - b, ONES(2), ONES(2), calls=[call(ONES(2), b=ONES(2) * 5)], differs={"call 1": LENIENT}
    ),
    "variable keywords": Case(
        module(lambda self, a, **k: a - k["b"] + k["c"]),
        (ONES(2),),
        {"b": ONES(2) * 3, "c": ONES(2)},
        calls=[call(ONES(2), c=ONES(2), b=ONES(2) * 5)],
    ),
    "variable arguments": case(
        lambda self, a, *r: a + sum(r), ONES(2), ONES(2), ONES(2), calls=[call(ONES(2), ONES(2))]
    ),
    "one variable argument": case(lambda self, *r: sum(r), ONES(2)),
    "nested results": case(lambda self, x: {"a": [x + 1, (x, None, 3)], "b": "s"}, ONES(2)),
    "a result twice": case(lambda self, x: (x + 1,) * 2, ONES(2)),
    "an input as result": case(lambda self, x: x, ONES(2)),
    "a parameter as result": Case(module(lambda self: self.w, w=lambda: nn.Parameter(ONES(2))), ()),
    "a buffer as result": Case(module(lambda self, x: (self.b, x), b=ONES(2)), (ONES(2),)),
    "no inputs": case(lambda self: torch.ones(3) + 1),
    "None as result": case(lambda self, x: None, ONES(2)),
    "a number as result": case(lambda self, x: 3, ONES(2)),
    "a view as result": case(lambda self, x: x[0], ONES(2, 2)),
    "calls that do not fit": case(
        lambda self, x: x + 1, ONES(2), calls=[call(ONES(3)), call(2), call(ONES(2), ONES(2)), call(), call([ONES(2)])]
    ),
    "another dtype": case(lambda self, x: x + 1, ONES(2), calls=[call(ONES(2).long())], differs={"call 1": STRICT}),
    "another rank": case(lambda self, x: x + 1, ONES(2), calls=[call(ONES(2, 1))], differs={"call 1": STRICT}),
    "complex numbers": case(lambda self, x: x * 1j, ONES(2, dtype=torch.complex64)),
    "no dimensions": case(lambda self, x: x * 2, torch.tensor(3.0)),
    "an input with gradients": case(lambda self, x: x * 2, RANDOM(3, requires_grad=True)),
    "arguments that are no tuple": Case(module(lambda self, x: x * 2), ONES(2)),
    "a choice by data": case(lambda self, x: x + 1 if x.sum() > 0 else x, ONES(2)),
    "too many arguments": case(lambda self, x: x * 2, ONES(2), ONES(2)),
    "a keyword that is none": Case(module(lambda self, x: x * 2), (ONES(2),), {"y": ONES(2)}),
    "marks of a profiler": case(lambda self, x: marked(x), ONES(2)),
    "printing": case(lambda self, x: (print("shape", x.shape), x + 1)[1], ONES(2)),
    "strict": case(lambda self, x: x + 1, ONES(2), options={"strict": True}),
    "assertions": case(lambda self, x: asserted(x), ONES(2)),
    "custom autograd": case(lambda self, x: Doubling.apply(x), ONES(2)),
    "a loop": case(lambda self, x: looped(x), ONES(2)),
    "generators of rows": case(lambda self, x: torch.stack([row * 2 for row in x]), ONES(3, 2)),
}


def marked(x):
    with torch.profiler.record_function("mine"):
        return x + 1


def asserted(x):
    assert x.shape[0] == 2, "two rows"
    return x + 1


def looped(x):
    for number in range(3):
        x = x * number + 1
    return x


class Doubling(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2


@pytest.mark.parametrize("name", CASES)
def test_both_exporters_agree(name):
    assert not differences(CASES[name])
