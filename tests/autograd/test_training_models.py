"""Whole architectures trained for five steps: parameters and buffers are eager's after every one."""

import copy
from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree

from precast.autograd import aot_module
from precast.compilers import nop
from tests.models.zoo import QUICK, ZOO

NAMES = [pytest.param(name, marks=() if name in QUICK else pytest.mark.models) for name in ZOO]


def loss_of(outputs: Any) -> torch.Tensor:
    tensors = [leaf for leaf in pytree.tree_leaves(outputs) if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
    return sum(tensor.float().square().mean() for tensor in tensors)


@pytest.mark.parametrize("name", NAMES)
def test_five_steps_of_training(name: str):
    torch.manual_seed(0)
    example = ZOO[name]().train()
    eager = copy.deepcopy(example.module)
    modules = eager, aot_module(example.module, nop)
    optimizers = [torch.optim.SGD(module.parameters(), 0.01, momentum=0.9) for module in modules]
    for step in range(5):
        for module, optimizer in zip(modules, optimizers, strict=True):
            torch.manual_seed(step)
            optimizer.zero_grad()
            loss_of(module(*example.args, **example.kwargs)).backward()
            optimizer.step()
        for tensors in (torch.nn.Module.named_parameters, torch.nn.Module.named_buffers):
            for (key, their), (_, our) in zip(tensors(eager), tensors(modules[1]), strict=True):
                torch.testing.assert_close(our, their, rtol=0, atol=0, msg=f"{key} after step {step}")
