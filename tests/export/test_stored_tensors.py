"""Tensors that a forward stores in attributes: taken where no later call would know, refused where one would."""

import copy

import pytest
import torch
from torch import nn

import precast.export
from precast.errors import StateMutationError
from precast.export import Dim, export


class Storing(nn.Module):
    def __init__(self, make):
        super().__init__()
        self.make, self.kept = make, {}
        self.biases = nn.Parameter(torch.randn(4, 4))
        self.register_buffer("count", torch.zeros(1))
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x):
        if "first" not in self.kept:
            self.kept["first"] = self.make(self, x)
        self.count.add_(1)
        return self.norm(x) @ self.kept["first"] + torch.rand(4)


X = torch.randn(3, 4)


@pytest.mark.parametrize("shapes", [None, {"x": {0: Dim("rows", min=2)}}])
def test_a_cache_of_parameters_is_computed_in_each_call(shapes):
    model = Storing(lambda self, x: self.biases[:, torch.tensor([3, 2, 1, 0])])
    program = export(model, (X,), dynamic_shapes=shapes)
    assert model.kept == {}
    module = copy.deepcopy(program.module())
    for _ in range(2):
        torch.manual_seed(0)
        expected = model(X)
        torch.manual_seed(0)
        torch.testing.assert_close(module(X), expected)
    torch.testing.assert_close(module.norm.running_mean, model.norm.running_mean)
    with torch.no_grad():
        module.biases.mul_(2)
        model.kept["first"] = module.biases[:, torch.tensor([3, 2, 1, 0])]
    torch.manual_seed(0)
    expected = model.eval()(X)
    torch.manual_seed(0)
    torch.testing.assert_close(export(model, (X,)).module()(X), expected)


@pytest.mark.parametrize(
    "make",
    [
        lambda self, x: x.new_ones(4, 4) * x.sum(),
        lambda self, x: self.biases * self.count,
        lambda self, x: torch.rand(4, 4),
    ],
    ids=["of arguments", "of what changes", "random"],
)
def test_what_a_later_call_would_learn_from_an_earlier_one_is_refused(make):
    with pytest.raises(StateMutationError, match="kept"):
        export(Storing(make), (X,))


def test_what_sizes_decide_on_is_refused_where_they_may_change():
    model = Storing(lambda self, x: torch.eye(4) * torch.arange(x.shape[0]).sum())
    export(model, (X,))
    with pytest.raises(StateMutationError, match="kept"):
        export(model, (X,), dynamic_shapes={"x": {0: Dim("rows", min=2)}})


def test_a_count_in_an_attribute_is_refused():
    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.count = torch.zeros(1)

        def forward(self, x):
            self.count = self.count + 1
            return x + self.count

    with pytest.raises(StateMutationError, match="count"):
        export(Counting(), (X,))


@pytest.mark.parametrize("wrap", [nn.utils.weight_norm, nn.utils.spectral_norm])
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("training", [True, False])
def test_weights_that_a_hook_sets(wrap, training):
    torch.manual_seed(0)
    model = wrap(nn.Linear(4, 3)).train(training)
    peer, ours = (library.export(model, (X,)).module() for library in (torch.export, precast.export))
    peer.load_state_dict({name: value.clone() for name, value in model.state_dict().items()}, assign=True)
    ours.load_state_dict({name: value.clone() for name, value in model.state_dict().items()}, assign=True)
    for _ in range(3):
        torch.testing.assert_close(ours(X), peer(X))


def test_statistics_of_a_norm_whose_result_nobody_reads_are_updated():
    class Watching(nn.Module):
        def __init__(self):
            super().__init__()
            self.batch, self.instance = nn.BatchNorm1d(4), nn.InstanceNorm1d(4, track_running_stats=True)

        def forward(self, x):
            self.batch(x)
            self.instance(x)
            return x + 1

    model, x = Watching(), torch.randn(3, 4, 2)
    module = export(copy.deepcopy(model), (x,)).module()
    module(x)
    model(x)
    torch.testing.assert_close(dict(module.named_buffers()), dict(model.named_buffers()))
