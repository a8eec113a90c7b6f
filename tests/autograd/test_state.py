"""Parameters, buffers and captured tensors: read afresh at each call, updated once, never held as they were."""

import copy

import pytest
import torch
from torch import nn

from precast.autograd import aot_function, aot_module
from precast.compilers import nop
from tests.autograd.like_eager import CompilationCount, leaf


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 8)
        self.norm = nn.BatchNorm1d(8)
        self.second = nn.Linear(8, 2)

    def forward(self, x):
        return self.second(torch.dropout(self.norm(self.first(x)).relu(), 0.5, self.training))


def pair(make=Net, **options):
    """The module in eager, and a compiled copy."""
    torch.manual_seed(0)
    module = make()
    count = CompilationCount()
    return module, aot_module(copy.deepcopy(module), count, **options), count


def assert_same(eager, compiled, x=None, seed=5):
    x = torch.randn(3, 4) if x is None else x
    torch.manual_seed(seed)
    expected = eager(x)
    torch.manual_seed(seed)
    result = compiled(x)
    assert torch.equal(result, expected)
    assert result.requires_grad == expected.requires_grad
    if expected.requires_grad:
        parameters = [[p for p in module.parameters() if p.requires_grad] for module in (eager, compiled)]
        gradients = [torch.autograd.grad(y.sum(), p) for y, p in zip((expected, result), parameters, strict=True)]
        assert all(map(torch.equal, *gradients))
    for ours, theirs in zip(compiled.buffers(), eager.buffers(), strict=True):
        assert torch.equal(ours, theirs)


def test_optimizer_steps():
    eager, compiled, count = pair()
    optimizers = [torch.optim.SGD(module.parameters(), 0.1, momentum=0.9) for module in (eager, compiled)]
    for step in range(4):
        x = torch.randn(3, 4)
        for module, optimizer in zip((eager, compiled), optimizers, strict=True):
            torch.manual_seed(step)
            optimizer.zero_grad()
            module(x).square().sum().backward()
            optimizer.step()
        assert all(map(torch.equal, eager.parameters(), compiled.parameters()))
    assert len(count) == 2


@pytest.mark.parametrize("assign", [False, True])
def test_load_state_dict(assign):
    eager, compiled, count = pair()
    assert_same(eager, compiled)
    torch.manual_seed(9)
    other = Net().state_dict()
    for module in (eager, compiled):
        module.load_state_dict(copy.deepcopy(other), assign=assign)
    assert_same(eager, compiled)
    assert len(count) == 2


def test_second_order_after_parameters_were_replaced():
    eager, compiled, _ = pair(lambda: nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1)))
    x = leaf(3, 4, dtype=torch.float32)
    compiled(x)
    results = []
    other = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1)).state_dict()
    for module in (eager, compiled):
        module.load_state_dict(copy.deepcopy(other), assign=True)
        (gradient,) = torch.autograd.grad(module(x).sum(), x, create_graph=True)
        results.append(torch.autograd.grad(gradient.square().sum(), list(module.parameters())[:3]))
    torch.testing.assert_close(results[1], results[0])


def test_requires_grad_toggled():
    eager, compiled, _ = pair()
    assert_same(eager, compiled)
    for module in (eager, compiled):
        module.first.requires_grad_(False)
    assert_same(eager, compiled)
    for module in (eager, compiled):
        module.requires_grad_(False)
    assert_same(eager, compiled)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_dtype_changed(dtype):
    eager, compiled, _ = pair()
    assert_same(eager, compiled)
    assert_same(eager.to(dtype), compiled.to(dtype), torch.randn(3, 4).to(dtype))


def test_train_and_eval_are_two_variants():
    eager, compiled, count = pair()
    for training in (True, False, True, False):
        assert_same(eager.train(training), compiled.train(training))
    assert len(count) == 4


def test_mode_of_one_submodule():
    eager, compiled, _ = pair()
    assert_same(eager, compiled)
    eager.norm.eval()
    compiled.norm.eval()
    assert_same(eager, compiled)


def test_submodule_replaced():
    eager, compiled, _ = pair()
    assert_same(eager, compiled)
    torch.manual_seed(1)
    eager.second = nn.Linear(8, 5)
    compiled.second = copy.deepcopy(eager.second)
    assert_same(eager, compiled)


def test_submodule_replaced_by_one_of_the_same_sizes():
    eager, compiled, _ = pair()
    assert_same(eager, compiled)
    eager.second = nn.Sequential(nn.Linear(8, 2), nn.Tanh())
    compiled.second = copy.deepcopy(eager.second)
    assert_same(eager, compiled)


def test_parameter_taken_away_and_given_back():
    eager, compiled, _ = pair()
    assert_same(eager, compiled)
    for module in (eager, compiled):
        module.first.bias = None
    assert_same(eager, compiled)
    for module in (eager, compiled):
        module.first.bias = nn.Parameter(torch.ones(8))
    assert_same(eager, compiled)


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.second.weight = self.first.weight

    def forward(self, x):
        return self.second(self.first(x).tanh())


def test_tied_parameters_are_one_input():
    eager, compiled, count = pair(Tied)
    assert_same(eager, compiled)
    assert sum(node.name.startswith("primals") for node in count.graphs[0].graph.nodes) == 4


def test_parameters_untied_later():
    eager, compiled, _ = pair(Tied)
    assert_same(eager, compiled)
    for module in (eager, compiled):
        module.second.weight = nn.Parameter(torch.eye(4) * 2)
    assert_same(eager, compiled)


def test_parameters_tied_later():
    eager, compiled, _ = pair(lambda: nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)))
    assert_same(eager, compiled)
    for module in (eager, compiled):
        module[1].weight = module[0].weight
    assert_same(eager, compiled)


def test_state_comes_first_parameters_before_buffers():
    _, compiled, count = pair()
    compiled(torch.randn(3, 4))
    shapes = [tuple(n.meta["val"].shape) for n in count.graphs[0].graph.nodes if n.op == "placeholder"]
    assert shapes[:6] == [(8, 4), (8,), (8,), (8,), (2, 8), (2,)]
    assert shapes[6:] == [(8,), (8,), (), (3, 4)]


def test_buffers_are_updated_in_place_once_a_call():
    _, compiled, _ = pair()
    mean, count = compiled.norm.running_mean, compiled.norm.num_batches_tracked
    for calls in (1, 2, 3):
        version = mean._version
        compiled(torch.randn(3, 4))
        assert compiled.norm.running_mean is mean
        assert mean._version == version + 1
        assert int(count) == calls


def test_failed_compilation_leaves_buffers_and_modes_untouched():
    class Failing(Net):
        def forward(self, x):
            self.norm(self.first(x))
            raise LookupError("no such thing")

    module = Failing()
    before = copy.deepcopy(module.state_dict())
    with pytest.raises(LookupError, match="no such thing"):
        aot_module(module, nop)(torch.ones(3, 4))
    assert module.training
    for name, value in module.state_dict().items():
        assert torch.equal(value, before[name])


def test_closure_gets_gradients():
    weight = leaf(3)
    compiled = aot_function(lambda x: (x * weight).sum(), nop)
    x = leaf(3)
    compiled(x).backward()
    assert torch.equal(weight.grad, x.detach())
    assert torch.equal(x.grad, weight.detach())


def test_captured_tensor_is_read_afresh():
    weight = torch.ones(3)
    compiled = aot_function(lambda x: x * weight, nop)
    assert torch.equal(compiled(torch.ones(3)), torch.ones(3))
    weight.fill_(5)
    assert torch.equal(compiled(torch.ones(3)), torch.full((3,), 5.0))
    weight = torch.full((3,), 7.0)
    assert torch.equal(compiled(torch.ones(3)), torch.full((3,), 7.0))
    weight = torch.full((1,), 8.0, dtype=torch.float64)
    assert torch.equal(compiled(torch.ones(3)), torch.full((3,), 8.0, dtype=torch.float64))


def test_captured_tensor_that_comes_to_need_gradients():
    weight = torch.ones(3)
    compiled = aot_function(lambda x: x * weight, nop)
    assert not compiled(torch.ones(3)).requires_grad
    weight.requires_grad_()
    assert compiled(torch.ones(3)).requires_grad


scale = torch.ones(3)


def test_global_tensor_is_read_afresh():
    global scale
    compiled = aot_function(lambda x: x * scale, nop)
    assert torch.equal(compiled(torch.ones(3)), torch.ones(3))
    scale = torch.full((3,), 7.0)
    assert torch.equal(compiled(torch.ones(3)), torch.full((3,), 7.0))


def test_captured_tensor_is_written_in_place():
    total = torch.zeros(3)

    def function(x):
        total.add_(x)
        return x * 2

    compiled = aot_function(function, nop)
    compiled(torch.ones(3))
    compiled(torch.ones(3))
    assert torch.equal(total, torch.full((3,), 2.0))


def test_module_in_a_closure():
    torch.manual_seed(0)
    layer = nn.Linear(4, 4)
    compiled = aot_function(lambda x: layer(x).sum(), nop)
    x = torch.randn(2, 4)
    compiled(x).backward()
    ours = layer.weight.grad.clone()
    layer.zero_grad()
    layer(x).sum().backward()
    assert torch.equal(ours, layer.weight.grad)
    with torch.no_grad():
        layer.weight.mul_(2)
    assert torch.equal(compiled(x), layer(x).sum())


def test_input_that_is_also_captured():
    weight = leaf(3)
    aot_function(lambda x: (x * weight).sum(), nop)(weight).backward()
    assert torch.equal(weight.grad, 2 * weight.detach())
