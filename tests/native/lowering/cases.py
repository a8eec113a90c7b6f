"""Many small programs as one library, each compared with eager and with float64."""

import torch

from tests.native.lowering.numbers import assert_right, doubled
from tests.native.lowering.pipeline import lowered, make_entry, open_entries

ACTIVATIONS = {
    "relu": torch.nn.functional.relu,
    "relu6": torch.nn.functional.relu6,
    "gelu": torch.nn.functional.gelu,
    "gelu_tanh": lambda value: torch.nn.functional.gelu(value, approximate="tanh"),
    "silu": torch.nn.functional.silu,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "hardswish": torch.nn.functional.hardswish,
}
"""Activations that a product or a convolution may apply itself."""


def floats(*shape, seed=0, dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def integers(*shape, low=-9, high=10, seed=0, dtype=torch.int64):
    return torch.randint(low, high, shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def as_tuple(value):
    return tuple(value) if isinstance(value, tuple | list) else (value,)


def open_cases(cases, cache):
    """`cases`: name → (function, inputs). None of them may call back into torch."""
    entries = [make_entry(lowered(function, *inputs, name=name)) for name, (function, inputs) in cases.items()]
    called_back = {entry.name: [step.operator for step in entry.fallbacks] for entry in entries if entry.fallbacks}
    assert not called_back
    return open_entries(entries, cache)


def check_case(model, name, case, *, sums=False):
    function, inputs = case
    ours = model[name](*inputs)
    exact = as_tuple(function(*doubled(inputs)))
    for mine, eager, reference in zip(ours, as_tuple(function(*inputs)), exact, strict=True):
        assert_right(mine, eager, reference, sums=sums)
