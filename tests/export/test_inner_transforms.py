"""Programs that differentiate or vectorize by themselves are recorded after autograd."""

import pytest
import torch
import torch.nn.functional as F

import precast
import precast.runtime
from precast.export import export, load, save
from precast.export.pre_autograd import capture_pre_autograd_graph
from precast.trace.capture.failures import InnerTransformError
from tests.export.models import Function


def gradients(loss_of):
    def function(w, b, x, y):
        loss = loss_of(w, b, x, y)
        return loss, *torch.autograd.grad(loss, (w, b))

    return function


def functional_gradients(loss_of):
    def function(w, b, x, y):
        gradients, loss = torch.func.grad_and_value(loss_of, argnums=(0, 1))(w, b, x, y)
        return loss, *gradients

    return function


def cross_entropy(w, b, x, y):
    return F.cross_entropy(F.linear(x, w, b), y)


def normalized(w, b, x, y):
    return (F.layer_norm(F.silu(F.linear(x, w, b)), (3,)) * y[:, None]).square().mean()


def inputs():
    torch.manual_seed(0)
    w, b = torch.randn(3, 4, requires_grad=True), torch.zeros(3, requires_grad=True)
    return w, b, torch.randn(5, 4), torch.randint(0, 3, (5,))


@pytest.mark.thinned
@pytest.mark.parametrize("loss_of", [cross_entropy, normalized])
@pytest.mark.parametrize("transform", [gradients, functional_gradients])
def test_gradients_inside_a_program_are_eagers(transform, loss_of):
    function, arguments = transform(loss_of), inputs()
    exported = export(Function(function), arguments)
    assert exported.dialect == "ATEN"
    exported.validate()
    torch.testing.assert_close(exported.module()(*arguments), function(*arguments))


def test_other_programs_are_recorded_before_autograd():
    exported = export(Function(cross_entropy), inputs())
    assert exported.dialect == "TRAINING"


def test_vmap_of_a_function_whose_result_does_not_depend_on_what_is_batched():
    def masked(x):
        mask = torch.vmap(torch.vmap(lambda q, k: q.new_ones((), dtype=torch.bool), (None, 0)), (0, None))
        return x.masked_fill(mask(torch.arange(5), torch.arange(6)), 0.0)

    x = torch.randn(5, 6)
    assert torch.equal(export(Function(masked), (x,)).module()(x), masked(x))
    assert torch.equal(precast.compile(masked, fullgraph=True, backend="nop")(x), masked(x))


def test_vmap_inside_a_program():
    x = torch.randn(4, 3)
    exported = export(Function(torch.vmap(lambda row: row.sin().cumsum(0))), (x,))
    torch.testing.assert_close(exported.module()(x), x.sin().cumsum(1))


def test_a_graph_from_before_autograd_is_refused_where_it_is_asked_for():
    with pytest.warns(FutureWarning), pytest.raises(InnerTransformError, match=r"loss = loss_of|autograd.grad"):
        capture_pre_autograd_graph(Function(gradients(cross_entropy)), inputs())


class TrainStep(torch.nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x, y):
        loss = F.cross_entropy(self.model(x), y)
        parameters = list(self.model.parameters())
        for parameter, gradient in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
            with torch.no_grad():
                parameter.sub_(gradient, alpha=0.1)
        return loss


def test_a_training_step_is_packaged(tmp_path):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
    x, y = torch.randn(6, 4), torch.randint(0, 3, (6,))
    path = precast.package({"train": (TrainStep(model), (x, y)), "forward": (model, (x,))}, path=tmp_path / "step")
    loaded, step = precast.runtime.load(path), TrainStep(model)
    loaded.verify()
    for _ in range(3):
        torch.testing.assert_close(loaded["train"](x, y), step(x, y).detach())
    torch.testing.assert_close(loaded["forward"](x), model(x).detach())


def test_recurrent_layers_beside_vectorized_code_can_be_saved(tmp_path):
    class Tagger(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.recurrent = torch.nn.LSTM(3, 4, batch_first=True)

        def forward(self, x):
            scaled = torch.func.grad(lambda value: value.square().sum())(x)
            return self.recurrent(scaled)[0]

    module, x = Tagger().eval(), torch.randn(2, 5, 3)
    with torch.no_grad():
        save(export(module, (x,)), tmp_path / "tagger.pt2")
        torch.testing.assert_close(load(tmp_path / "tagger.pt2").module()(x), module(x))
