"""``precast.explain``: what becomes of a function's graphs, told without building them."""

import pytest
import torch

import precast
from precast.errors import FreezeError, InputTypeError


def test_an_inference_graph():
    told = precast.explain(lambda x, w: torch.relu(x @ w).sum(-1), torch.ones(2, 3), torch.ones(3, 4))
    (graph,) = told.graphs
    assert graph.name == "inference"
    assert [step.operators for step in graph.library_calls] == [("mm",)]
    assert graph.moved.constant > 0
    assert told.fallbacks == ()


def test_forward_and_backward_where_gradients_are_asked_for():
    told = precast.explain(torch.nn.Linear(3, 2), torch.ones(1, 3))
    assert [graph.name for graph in told.graphs] == ["forward", "backward"]


def test_a_call_back_into_torch_names_the_users_line():
    def function(x):
        return torch.linalg.eigvalsh(x) + 1

    told = precast.explain(function, torch.eye(2))
    assert told.fallbacks == ("aten._linalg_eigh.default",)
    assert "torch.linalg.eigvalsh(x) + 1" in str(told)


def test_what_splits_a_graph_is_told():
    told = precast.explain(lambda x: torch.view_as_complex(x.exp()).tanh().abs() + 1, torch.ones(2, 2))
    assert "split into 2 native parts" in str(told)
    assert "aten.view_as_complex.default" in str(told)


def test_nothing_runs_and_nothing_is_built(monkeypatch):
    monkeypatch.setenv("PATH", "")
    x = torch.zeros(2)
    precast.explain(lambda x: x.add_(1), x)
    assert x.tolist() == [0, 0]


def test_a_compiled_module_explains_as_its_module():
    layer = torch.nn.Linear(2, 2)
    assert str(precast.explain(precast.compile(layer), torch.ones(1, 2))) == str(
        precast.explain(layer, torch.ones(1, 2))
    )


def test_only_callables_can_be_explained():
    with pytest.raises(InputTypeError, match="got an object of type int"):
        precast.explain(3)


def test_a_kernel_for_many_tensors_is_one_line_that_says_how_many():
    explanation = precast.explain(lambda *given: [each.sin() for each in given], torch.ones(3), torch.ones(2, 2))
    (graph,) = explanation.graphs
    assert [kernel.times for kernel in graph.kernels] == [2]
    assert "sin, 2 times" in str(explanation)
    assert graph.as_data()["steps"][0]["times"] == 2


def test_a_compiled_module_is_explained_with_its_options():
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4)).eval()
    frozen = precast.compile(model, options={"freeze": True})
    with torch.no_grad():
        (graph,) = precast.explain(frozen, torch.ones(1, 3, 8, 8)).graphs
    assert [step.operators for step in (*graph.kernels, *graph.library_calls)] == [("convolution",)]
    with pytest.raises(FreezeError, match="no_grad"):
        precast.explain(frozen, torch.ones(1, 3, 8, 8))


class Router(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.small, self.large = (
            torch.nn.Linear(4, 4),
            torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 4)),
        )
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return self.large(x) if x.abs().max() > 0 else self.small(x)


def test_regions_of_a_program_in_pieces_are_listed_with_the_line_that_breaks_it():
    model = torch.nn.Sequential(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.GELU()), Router())
    told = precast.explain(model, torch.ones(2, 4))
    in_python = {region.name: region.reason for region in told.regions if region.is_in_python}
    assert set(in_python) == {"Sequential", "1"}
    assert "self.large(x) if x.abs().max() > 0" in in_python["1"]
    assert {region.name for region in told.regions if not region.is_in_python} == {"0", "1.large"}
    assert "runs in pieces:" in str(told)
    assert "compiled   1.large" in str(told)
    assert {"region": "0", "runs_in_python": False, "reason": "the first call"} in told.as_data()
    assert len(told.graphs) == 4
    assert model[1].calls == 0


def test_a_program_in_pieces_runs_on_copies_of_its_arguments():
    seen = []

    def function(x, weight):
        seen.append((x.tolist(), weight.tolist()))
        return x @ weight if x.sum() > 0 else x

    x, weight = torch.ones(1, 3), torch.full((3, 2), 2.0)
    precast.explain(function, x, weight)
    assert ([[1.0] * 3], [[2.0] * 2] * 3) in seen
    assert torch.equal(x, torch.ones(1, 3))


def test_a_program_that_is_one_graph_has_no_regions():
    assert precast.explain(torch.nn.Linear(2, 2), torch.ones(1, 2)).regions == ()
