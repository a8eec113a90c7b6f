"""Fixtures that every test may ask for."""

import random
import zlib
from collections.abc import Callable

import numpy
import pytest
import torch
from torch import fx
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from tests.golden_files import assert_file_holds


@pytest.fixture(autouse=True)
def own_seed(request: pytest.FixtureRequest) -> None:
    """Every test draws the numbers of its own name, so that one that fails fails again, alone and in any order."""
    seed = zlib.crc32(request.node.nodeid.encode())
    random.seed(seed)
    numpy.random.seed(seed)
    torch.manual_seed(seed)


@pytest.fixture
def assert_golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """``assert_golden(name, text)``: the text equals ``golden/<name>.txt`` in the folder of the test that asks."""
    folder = request.path.parent / "golden"
    return lambda name, text: assert_file_holds(folder / f"{name}.txt", text)


@pytest.fixture
def trace():
    """By torch's own tracer: ``trace(function, *inputs, dynamic=False)`` → (graph module, fake example inputs)."""

    def run(function, *inputs, dynamic=False) -> tuple[fx.GraphModule, list[object]]:
        mode = FakeTensorMode(shape_env=ShapeEnv() if dynamic else None, allow_non_fake_inputs=True)
        fakes = [mode.from_tensor(value, static_shapes=not dynamic) for value in inputs]
        with mode:
            return make_fx(function)(*fakes), fakes

    return run
