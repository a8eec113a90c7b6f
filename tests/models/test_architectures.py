"""Whole architectures, captured, functionalized and interpreted, give eager's numbers."""

import copy

import pytest
import torch
from torch.utils import _pytree as pytree

from precast.graph.interpreter import interpret
from precast.graph.nodes import module_path_of
from precast.trace.capture import capture
from precast.trace.functionalize import functionalize
from tests.models.zoo import QUICK, ZOO, Example

NAMES = [pytest.param(name, marks=() if name in QUICK else pytest.mark.models) for name in ZOO]
MODES = pytest.mark.parametrize("training", [False, True], ids=["eval", "training"])


def assert_like_eager(example: Example, *, dynamic: bool) -> None:
    eager = copy.deepcopy(example.module)
    with torch.no_grad():
        sizes = example.dynamic_shapes if dynamic else None
        program = functionalize(capture(example.module, example.args, example.kwargs, dynamic_shapes=sizes))
        for kwargs in [example.kwargs, example.other_kwargs] if dynamic else [example.kwargs]:
            torch.manual_seed(1)
            expected = eager(*example.args, **kwargs)
            torch.manual_seed(1)
            result = interpret(program, *example.args, **kwargs)
            torch.testing.assert_close(pytree.tree_leaves(result), pytree.tree_leaves(expected))
            # Statistics that the forward updates: the captured module's, as eager's.
            torch.testing.assert_close(dict(example.module.named_buffers()), dict(eager.named_buffers()))


@pytest.mark.thinned
@MODES
@pytest.mark.parametrize("name", NAMES)
def test_static_sizes(name: str, training: bool):
    torch.manual_seed(0)
    assert_like_eager(ZOO[name]().train(training), dynamic=False)


@pytest.mark.thinned
@MODES
@pytest.mark.parametrize("name", NAMES)
def test_dynamic_sizes(name: str, training: bool):
    torch.manual_seed(0)
    assert_like_eager(ZOO[name]().train(training), dynamic=True)


def test_training_draws_random_numbers():
    torch.manual_seed(0)
    example = ZOO["bert"]().train()
    assert functionalize(capture(example.module, (), example.kwargs)).boundary.is_random


def test_nodes_name_the_layer_they_come_from():
    example = ZOO["bert"]()
    program = capture(example.module, (), example.kwargs)
    paths = {module_path_of(node) for node in program.graph.nodes}
    assert "encoder.layer.1.attention.self.query" in paths
