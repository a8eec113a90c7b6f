"""The backward has a batch norm's mean and spread from the forward, and computes its formula alone."""

import copy

import pytest
import torch
from torch import nn

import precast
from precast.native.partition import native_partition

_NORM = torch.ops.aten._native_batch_norm_legit_functional.default
IMAGES = torch.randn(4, 3, 6, 5, generator=torch.Generator().manual_seed(0))


def network(**options) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8, **options), nn.ReLU(), nn.Conv2d(8, 4, 1))


def backward_targets(module: nn.Module, images: torch.Tensor) -> list[object]:
    found = []

    def backward_compiler(graph_module, _):
        found.extend(node.target for node in graph_module.graph.nodes)
        return graph_module.forward

    compiled = precast.aot_module(
        module, fw_compiler=lambda graph_module, _: graph_module.forward, bw_compiler=backward_compiler,
        partition_fn=native_partition,
    )  # fmt: skip
    compiled(images).sum().backward()
    return found


def test_the_backward_does_not_norm_again():
    targets = backward_targets(network(), IMAGES)
    assert torch.ops.aten.native_batch_norm_backward.default in targets
    assert _NORM not in targets


def test_narrow_types_stay_whole():
    module = network().bfloat16()
    assert _NORM in backward_targets(module, IMAGES.bfloat16())


@pytest.mark.parametrize("is_channels_last", [True, False])
def test_under_autocast_the_backward_does_not_norm_again(is_channels_last):
    """Images are narrow there, statistics are not: what is computed from those is what the norm itself computed."""
    layout = torch.channels_last if is_channels_last else torch.contiguous_format
    eager, images = network().to(memory_format=layout), IMAGES.to(memory_format=layout)
    compiled = precast.compile(copy.deepcopy(eager))
    with torch.autocast("cpu", torch.bfloat16):
        assert _NORM not in backward_targets(copy.deepcopy(eager), images)
        outcomes = []
        for module in (eager, compiled):
            result = module(images)
            result.float().square().sum().backward()
            outcomes.append([result, *(each.grad for each in module.parameters()), *module.buffers()])
    torch.testing.assert_close(outcomes[1], outcomes[0], rtol=3e-2, atol=3e-2)


@pytest.mark.parametrize("options", [{}, {"affine": False}, {"track_running_stats": False}])
def test_results_gradients_and_running_statistics_are_those_of_eager(options):
    eager = network(**options)
    compiled = precast.compile(copy.deepcopy(eager))
    outcomes = []
    for module in (eager, compiled):
        images = IMAGES.clone().requires_grad_()
        result = module(images)
        result.square().sum().backward()
        outcomes.append([result, images.grad, *(each.grad for each in module.parameters()), *module.buffers()])
    torch.testing.assert_close(outcomes[1], outcomes[0], rtol=1e-4, atol=1e-5)
