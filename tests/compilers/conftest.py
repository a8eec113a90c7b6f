"""Graphs to compile, made with torch's own tracer so that these tests need no other stage of ours."""

import pytest
from torch import fx
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv


@pytest.fixture
def trace():
    """Return ``trace(function, *inputs, dynamic=False)`` → (graph module, fake example inputs)."""

    def run(function, *inputs, dynamic=False) -> tuple[fx.GraphModule, list[object]]:
        mode = FakeTensorMode(shape_env=ShapeEnv() if dynamic else None, allow_non_fake_inputs=True)
        fakes = [mode.from_tensor(value, static_shapes=not dynamic) for value in inputs]
        with mode:
            return make_fx(function)(*fakes), fakes

    return run
