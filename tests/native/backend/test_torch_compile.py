"""Our backend under PyTorch's own front end, found by its name."""

import pytest
import torch

from precast.errors import FreezeError
from precast.native.torch_compile import compile_graph


@pytest.fixture(autouse=True)
def fresh(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("PRECAST_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "torch-compile-cache"))
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def small_model() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.LayerNorm(8), torch.nn.GELU(), torch.nn.Linear(8, 2))


def test_it_is_found_by_its_name():
    model, x = small_model(), torch.randn(3, 4)
    with torch.no_grad():
        torch.testing.assert_close(torch.compile(model, backend="precast")(x), model(x))


def test_a_graph_break_gives_two_graphs():
    graphs = []

    def counting(graph_module, example_inputs):
        graphs.append(graph_module)
        return compile_graph(graph_module, example_inputs)

    def function(x):
        y = x.exp()
        torch._dynamo.graph_break()
        return y.sin() + 1

    x = torch.randn(3)
    torch.testing.assert_close(torch.compile(function, backend=counting)(x), function(x))
    assert len(graphs) == 2


def test_training_steps_are_eagers():
    x, target = torch.randn(6, 4), torch.randn(6, 2)
    losses = []
    for compiled in (False, True):
        model = small_model()
        run = torch.compile(model, backend="precast") if compiled else model
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(5):
            optimizer.zero_grad()
            loss = (run(x) - target).square().mean()
            loss.backward()
            optimizer.step()
        losses.append(loss.detach())
    torch.testing.assert_close(*losses)


def test_one_program_serves_all_sizes():
    calls = []

    def counting(graph_module, example_inputs):
        compiled = compile_graph(graph_module, example_inputs)
        calls.append(compiled)
        return compiled

    def function(x):
        return x.exp().reshape(x.shape[0] * 2, -1) * x.shape[0]

    run = torch.compile(function, backend=counting, dynamic=True)
    for rows in (3, 5, 7):
        x = torch.randn(rows, 4)
        torch.testing.assert_close(run(x), function(x))
    assert len(calls) == 1


def test_parameters_inside_the_graph_are_read_at_each_call():
    model = torch.nn.Linear(2, 2)
    run = compile_graph(torch.fx.symbolic_trace(model), [torch.ones(1, 2)])
    x = torch.ones(1, 2)
    torch.testing.assert_close(run(x), model(x))
    with torch.no_grad():
        model.weight.mul_(2)
    torch.testing.assert_close(run(x), model(x))


def test_a_model_that_breaks_the_graph_trains_as_in_eager():
    class Branching(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = torch.nn.Linear(4, 8), torch.nn.Linear(8, 2)

        def forward(self, x):
            y = torch.nn.functional.gelu(self.first(x))
            y = y * 2 if y.sum().item() > 0 else y - 1
            return self.second(y)

    torch.manual_seed(0)
    model, x = Branching(), torch.randn(6, 4)
    run = torch.compile(model, backend="precast")
    for inputs in (x, -x):
        expected = torch.autograd.grad(model(inputs).square().sum(), list(model.parameters()))
        found = torch.autograd.grad(run(inputs).square().sum(), list(model.parameters()))
        torch.testing.assert_close(found, expected)


def image_model(seed=0) -> torch.nn.Module:
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU()).eval()
    torch.nn.init.uniform_(model[1].running_var, 0.5, 2)
    return model


class Wrapped(torch.nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x) * 2


def test_parameters_may_be_frozen():
    model, x = image_model(), torch.randn(2, 3, 6, 6)
    run = torch.compile(model, backend="precast", options={"freeze": True})
    with torch.no_grad():
        before = model(x)
        torch.testing.assert_close(run(x), before)
        model[0].weight.mul_(2)
        torch.testing.assert_close(run(x), before)


def test_each_of_two_modules_that_share_a_graph_is_frozen_with_its_own_parameters():
    x = torch.randn(2, 3, 6, 6)
    models = [Wrapped(image_model(seed)) for seed in (1, 2)]
    with torch.no_grad():
        for model in (*models, *models):
            run = torch.compile(model, backend="precast", options={"freeze": True})
            torch.testing.assert_close(run(x), model(x))


def test_frozen_parameters_have_no_gradients():
    run = torch.compile(image_model(), backend="precast", options={"freeze": True})
    with pytest.raises(FreezeError, match="no_grad"):
        run(torch.randn(2, 3, 6, 6))
