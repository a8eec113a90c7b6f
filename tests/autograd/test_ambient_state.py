"""What surrounds a compiled call: random numbers, hooks on saved tensors."""

import torch
import torch.nn.functional as F
from torch.testing._internal.two_tensor import TwoTensor

from precast.autograd import aot_function
from precast.compilers import nop
from precast.partition import min_cut_rematerialization_partition
from tests.autograd.like_eager import CompilationCount, assert_like_eager, constants, leaf


def test_dropout_draws_eagers_numbers():
    assert_like_eager(lambda x, y: F.dropout(x @ y, 0.5))
    assert_like_eager(lambda x, y: F.dropout(x @ y, 0.5), constants)


def test_numbers_after_the_call_are_eagers():
    def function(x):
        return F.dropout(x, 0.5), torch.rand(3)

    x = leaf(8)
    draws = []
    for run in (function, aot_function(function, nop)):
        torch.manual_seed(3)
        draws.append([*run(x), torch.rand(2)])
    assert all(torch.equal(ours, eager) for ours, eager in zip(*draws, strict=True))


def test_compilation_leaves_the_random_state_untouched():
    compiled = aot_function(lambda x: F.dropout(x, 0.5), CompilationCount())
    x = leaf(8)
    torch.manual_seed(3)
    first = compiled(x)
    torch.manual_seed(3)
    second = compiled(x)
    assert torch.equal(first, second)


def test_second_order_of_dropout_replays_the_forwards_draw():
    def penalty(function):
        torch.manual_seed(0)
        x = leaf(16)
        torch.manual_seed(3)
        (gradient,) = torch.autograd.grad(function(x).sum(), x, create_graph=True)
        after = torch.rand(2)
        (second,) = torch.autograd.grad(gradient.square().sum(), x)
        return gradient.detach(), after, second

    def function(x):
        return F.dropout(x**3, 0.5)

    for ours, eager in zip(penalty(aot_function(function, nop)), penalty(function), strict=True):
        torch.testing.assert_close(ours, eager, rtol=1e-12, atol=0)


def test_rematerialized_dropout_replays_the_forwards_draw():
    def gradient(function):
        torch.manual_seed(0)
        x = leaf(64)
        torch.manual_seed(3)
        function(x).sum().backward()
        return x.grad

    def function(x):
        return F.dropout(x.sin(), 0.5).exp()

    compiled = aot_function(function, nop, partition_fn=min_cut_rematerialization_partition)
    torch.testing.assert_close(gradient(compiled), gradient(function))


def test_saved_tensor_hooks_run_at_run_time_on_real_tensors():
    packed, unpacked = [], []

    def pack(tensor):
        packed.append(type(tensor))
        return tensor.clone()

    def unpack(tensor):
        unpacked.append(type(tensor))
        return tensor

    x = leaf(3)
    compiled = aot_function(lambda x: x.sin().sum(), nop)
    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        loss = compiled(x)
        again = compiled(x)
    assert set(packed) == {torch.Tensor}
    count = len(packed)
    loss.backward()
    again.backward()
    assert set(unpacked) == {torch.Tensor}
    assert len(unpacked) == count
    torch.testing.assert_close(x.grad, 2 * x.detach().cos())


def test_saved_tensors_on_cpu():
    x = leaf(3)
    with torch.autograd.graph.save_on_cpu():
        loss = aot_function(lambda x: x.exp().sum(), nop)(x)
    loss.backward()
    torch.testing.assert_close(x.grad, x.detach().exp())


def test_written_subclass():
    def function(x):
        x.mul_(2)
        return x + 1

    x = TwoTensor(torch.ones(3), torch.full((3,), 2.0))
    result = aot_function(function, nop)(x)
    assert (x.a.tolist(), x.b.tolist()) == ([2.0] * 3, [4.0] * 3)
    assert (result.a.tolist(), result.b.tolist()) == ([3.0] * 3, [5.0] * 3)
