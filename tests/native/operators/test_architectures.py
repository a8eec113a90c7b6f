"""Whole architectures through native code: inference and five training steps, as close to eager as eager to itself."""

import copy
from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree

import precast
from tests.models.zoo import QUICK, ZOO

NAMES = [pytest.param(name, marks=() if name in QUICK else pytest.mark.models) for name in ZOO]
SIZES = pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
STEPS = 5
# Of windows that shift and are padded, torch's symbolic sizes take minutes to decide what is equal (swin).
pytestmark = pytest.mark.timeout(1800)


def floats_of(results: Any) -> list[torch.Tensor]:
    leaves = pytree.tree_leaves(results.to_tuple() if hasattr(results, "to_tuple") else results)
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.is_floating_point()]


@pytest.mark.thinned
@SIZES
@pytest.mark.parametrize("name", NAMES)
def test_inference(name: str, dynamic: bool):
    torch.manual_seed(0)
    example = ZOO[name]()
    compiled = precast.compile(example.module, backend="native", dynamic=dynamic)
    for kwargs in [example.kwargs, example.other_kwargs] if dynamic else [example.kwargs]:
        with torch.no_grad():
            ours, eager = compiled(*example.args, **kwargs), example.module(*example.args, **kwargs)
        torch.testing.assert_close(floats_of(ours), floats_of(eager), rtol=1e-4, atol=1e-5)


@pytest.mark.thinned
@SIZES
@pytest.mark.parametrize("name", NAMES)
def test_training_steps(name: str, dynamic: bool):
    torch.manual_seed(0)
    example = ZOO[name]()
    eager = copy.deepcopy(example.module)
    compiled = precast.compile(example.module, backend="native", dynamic=dynamic)
    losses = []
    for run, module in ((compiled, example.module), (eager, eager)):
        optimizer = torch.optim.SGD(module.parameters(), lr=0.01)
        for step in range(STEPS):
            kwargs = example.other_kwargs if dynamic and step % 2 else example.kwargs
            optimizer.zero_grad()
            loss = sum(result.square().mean() for result in floats_of(run(*example.args, **kwargs)))
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
    torch.testing.assert_close(losses[:STEPS], losses[STEPS:], rtol=1e-4, atol=1e-5)
    ours, theirs = dict(example.module.named_parameters()), dict(eager.named_parameters())
    torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4)
