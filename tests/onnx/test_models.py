"""Whole architectures in onnxruntime, at the example's sizes and at others."""

import pytest
import torch
from torch.utils import _pytree as pytree

from precast.onnx import export
from tests.models.zoo import ZOO

QUICK = ("bert", "resnet")
NAMES = [pytest.param(name, marks=() if name in QUICK else pytest.mark.models) for name in ZOO]


@pytest.mark.parametrize("name", NAMES)
def test_architecture(name: str):
    torch.manual_seed(0)
    example = ZOO[name]()
    program = export(example.module, example.args, example.kwargs, dynamic_shapes=example.dynamic_shapes)
    with torch.no_grad():
        for kwargs in (example.kwargs, example.other_kwargs):
            expected = pytree.tree_leaves(example.module(*example.args, **kwargs))
            result = pytree.tree_leaves(program(*example.args, **kwargs))
            torch.testing.assert_close(result, expected, rtol=1e-3, atol=1e-4)
