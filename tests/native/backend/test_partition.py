"""What the forward saves for the backward lies as convolutions like it; what the caller sees lies as in eager."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import precast
from precast.native.compiler import BACKEND
from precast.native.partition import native_partition


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 8, 3), nn.Tanh())


IMAGES = torch.randn(2, 3, 9, 8)


def saved_strides(module: nn.Module) -> list[tuple[int, ...]]:
    found = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: found.append(x) or x, lambda x: x):
        precast.compile(module)(IMAGES)
    return [each.stride() for each in found if each.ndim == 4 and each.shape[1] in (8, 16) and each.shape[2] > 3]


def test_saved_images_lie_channels_last():
    strides = saved_strides(network())
    assert len(strides) >= 2
    # All but the result of the network, which the caller sees.
    assert sum(stride[1] == 1 for stride in strides) >= len(strides) - 1


def test_places_of_a_pool_lie_as_its_images():
    pooled = nn.Sequential(nn.Conv2d(3, 16, 3), nn.MaxPool2d(2), nn.Conv2d(16, 8, 1))
    found = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: found.append(x) or x, lambda x: x):
        precast.compile(pooled)(IMAGES)
    assert {each.stride()[1] for each in found if each.dtype == torch.int64} == {1}


def test_images_inside_the_backward_lie_channels_last():
    passed = []

    def backward_compiler(module, _):
        passed.extend(node.meta["val"] for node in module.graph.nodes if node.op == "call_function")
        return module.forward

    convolve = precast.aot_function(
        lambda x, w: F.conv2d(F.conv2d(x, w).tanh(), w).sum(), fw_compiler=lambda module, _: module.forward,
        bw_compiler=backward_compiler, partition_fn=native_partition,
    )  # fmt: skip
    convolve(torch.randn(2, 4, 9, 8), torch.randn(4, 4, 3, 3, requires_grad=True)).backward()
    images = [each for each in passed if isinstance(each, torch.Tensor) and each.shape == (2, 4, 7, 6)]
    assert len(images) >= 2
    assert all(each.stride()[1] == 1 for each in images)


def test_images_stay_on_their_device():
    """Layouts are chosen without a look at where tensors are: what is told of them must not move them."""
    passed = []

    def compiler(module, _):
        passed.extend(node.meta["val"] for node in module.graph.nodes if node.op == "call_function")
        return module.forward

    module = precast.aot_module(
        network().to("meta"), fw_compiler=compiler, bw_compiler=compiler, partition_fn=native_partition
    )
    module(IMAGES.to("meta")).sum().backward()
    assert {each.device.type for each in passed if isinstance(each, torch.Tensor)} == {"meta"}


def test_results_and_gradients_are_those_of_eager():
    eager = network()
    compiled = precast.compile(copy.deepcopy(eager))
    results = []
    for module in (eager, compiled):
        images = IMAGES.clone().requires_grad_()
        result = module(images)
        result.square().sum().backward()
        results.append([result.stride(), result, images.grad, *(each.grad for each in module.parameters())])
    assert results[0][0] == results[1][0]
    torch.testing.assert_close(results[1][1:], results[0][1:], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dynamic", [False, True])
def test_several_batches(dynamic):
    module = network()
    compiled = precast.compile(copy.deepcopy(module), dynamic=dynamic)
    for rows in (2, 3):
        images = torch.randn(rows, 3, 9, 8)
        module(images).sum().backward()
        compiled(images).sum().backward()
    ours, theirs = ([each.grad for each in given.parameters()] for given in (compiled, module))
    torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-3)


def test_the_native_backend_splits_so():
    assert BACKEND.partition_fn is not None
    assert BACKEND.partition_fn.__name__ == "native_partition"
