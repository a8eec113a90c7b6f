"""A block of MobileNet's: product, depthwise convolution, product, each with batch norm, as eager computes it."""

import pytest
import torch
from torch import nn

import precast

IMAGES = torch.randn(2, 8, 11, 10, generator=torch.Generator().manual_seed(0))


def block():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(8, 24, 1, bias=False), nn.BatchNorm2d(24), nn.ReLU6(), nn.ZeroPad2d((0, 1, 0, 1)),
        nn.Conv2d(24, 24, 3, 2, groups=24, bias=False), nn.BatchNorm2d(24), nn.ReLU6(), nn.Conv2d(24, 8, 1),
    )  # fmt: skip


@pytest.mark.parametrize("freeze", [False, True])
def test_inference(freeze):
    model = block().eval()
    compiled = precast.compile(model, options={"freeze": freeze})
    with torch.no_grad():
        torch.testing.assert_close(compiled(IMAGES), model(IMAGES))


def test_training():
    eager, model = block(), block()
    compiled = precast.compile(model)
    for module, call in ((eager, eager), (model, compiled)):
        call(IMAGES).square().sum().backward()
        assert all(parameter.grad is not None for parameter in module.parameters())
    exact = block().double()
    exact(IMAGES.double()).square().sum().backward()
    for ours, theirs, right in zip(model.parameters(), eager.parameters(), exact.parameters(), strict=True):
        allowed = 4 * (theirs.grad - right.grad).abs().max() + 1e-4
        assert (ours.grad - right.grad).abs().max() <= allowed
    torch.testing.assert_close(dict(model.named_buffers()), dict(eager.named_buffers()))
