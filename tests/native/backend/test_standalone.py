import json
import logging
import subprocess
import sys

import numpy
import pytest
import torch

import precast
from precast.autograd.variants import prepare as variant_compilation
from precast.autograd.warm.start import KIND
from precast.cache import open_store
from precast.options import Options


@pytest.fixture
def options(tmp_path):
    return Options(cache_directory=tmp_path / "cache")


@pytest.fixture
def traces(monkeypatch):
    """How often anything was traced."""
    counted = []
    original = variant_compilation.prepare
    monkeypatch.setattr(variant_compilation, "prepare", lambda *a, **k: counted.append(1) or original(*a, **k))
    return counted


def start(model, options):
    return precast.compile(model, options=options, dynamic=False)


def test_a_trained_model_starts_again_without_a_trace(options, traces):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU(), torch.nn.LayerNorm(8), torch.nn.Linear(8, 2))
    x = torch.randn(3, 4, requires_grad=True)
    expected = torch.autograd.grad(model(x).square().sum(), [x, *model.parameters()])
    for _ in range(2):
        found = torch.autograd.grad(start(model, options)(x).square().sum(), [x, *model.parameters()])
        torch.testing.assert_close(found, expected)
    assert len(traces) == 1


def test_results_that_are_views_inputs_or_plain_values_come_back(options, traces):
    def run(x):
        y = (x + 1).exp()
        return {"view": y.view(-1), "same": y.t(), "number": 3, "nothing": None, "sorted": torch.sort(y.real)[0]}

    x = torch.randn(2, 3)
    for _ in range(2):
        torch.testing.assert_close(start(run, options)(x), run(x))


def test_random_numbers_are_drawn_anew_at_each_call_and_replayed_by_the_backward(options, traces):
    model = torch.nn.Dropout(0.5)
    x = torch.ones(1000, requires_grad=True)
    for _ in range(2):
        compiled = start(model, options)
        first, second = compiled(x), compiled(x)
        assert not torch.equal(first, second)
        (gradient,) = torch.autograd.grad(first.sum(), x)
        assert torch.equal(gradient, first.detach())
    assert len(traces) == 1


def test_operators_that_torch_runs_are_called_by_name(options, traces):
    def run(x):
        return torch.view_as_real(torch.fft.fft(x)).sum(-1) + 1

    x = torch.randn(8)
    for _ in range(2):
        torch.testing.assert_close(start(run, options)(x), run(x))
    assert len(traces) == 1


def test_a_library_that_is_gone_is_built_again(options, traces):
    def run(x):
        return x.sin() + 1

    x = torch.randn(5)
    start(run, options)(x)
    for path in (options.cache_directory).rglob("*.so"):
        path.unlink()
    torch.testing.assert_close(start(run, options)(x), run(x))
    assert len(traces) == 2


def test_why_a_call_cannot_start_without_a_trace_is_logged(options, caplog):
    held = numpy.ones(2)
    with caplog.at_level(logging.INFO, logger="precast.autograd"):
        start(lambda x: x if held is None else x * 2, options)(torch.ones(3))
    assert "traced, since the call depends on an object of type" in caplog.text


def test_steps_of_an_optimizer_start_again_without_a_trace(options, traces):
    counts = []
    for compile_step in (lambda step: start(step, options), lambda step: start(step, options), lambda step: step):
        torch.manual_seed(0)
        model = torch.nn.Linear(4, 4)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        step = compile_step(optimizer.step)
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.ones(2, 4)).square().sum().backward()
            step()
        counts.append((len(traces), [each.detach() for each in model.parameters()]))
    (first, one), (second, other), (_, eager) = counts
    assert first == second == 2
    torch.testing.assert_close((one, other), (eager, eager))


def test_entries_are_plain_data(options):
    start(torch.nn.Linear(2, 2), options)(torch.ones(1, 2))
    store = open_store(options)
    (entry,) = (store.directory / "store-1" / KIND).rglob("*.*")
    content = json.loads(entry.read_bytes())
    assert set(content) == {"data", "code", "digest", "reads", "variant"}


def test_a_profiled_graph_is_not_kept(options, traces):
    profiled = Options(cache_directory=options.cache_directory, profile=True)
    for _ in range(2):
        start(torch.sin, profiled)(torch.ones(2))
        start(torch.nn.Tanh(), profiled)(torch.ones(2))
    assert len(traces) == 4


def test_graphs_of_any_size_start_again_without_a_trace(options, traces):
    def run(x, offset):
        y = torch.view_as_real(torch.fft.fft(x + offset)).flatten(1)
        return y[:, : x.shape[1] // 2].t(), x.shape[0] * 2, torch.nonzero(x > 0).shape[1], torch.tensor([3.0])

    for rows, columns, offset in ((6, 8, 2), (5, 12, 4)):
        compiled = precast.compile(run, options=options, dynamic=True)
        for x in (torch.randn(rows, columns), torch.randn(columns, rows)):
            torch.testing.assert_close(compiled(x, offset), run(x, offset))
    assert len(traces) == 1


class Folded(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU())
        self.scale = torch.nn.Parameter(torch.randn(4, 1, 1))
        self.eval()
        with torch.no_grad():
            self.layers[1].running_mean.uniform_(-1, 1)
            self.layers[1].running_var.uniform_(1, 2)

    def forward(self, x):
        split = self.scale.exp().unbind(0)
        return (
            self.layers(x) * torch.stack(split[::-1]),
            torch.view_as_complex(torch.stack(split[:2], -1)),
            self.scale.exp(),
        )


@torch.no_grad()
def test_a_frozen_model_starts_again_without_a_trace_over_weights_of_its_own(options, traces):
    frozen = Options(cache_directory=options.cache_directory, freeze=True)
    x = torch.randn(2, 3, 8, 8)
    for _ in range(2):
        model = Folded()
        compiled = start(model, frozen)
        for _ in range(2):
            torch.testing.assert_close(compiled(x), model(x), rtol=1e-5, atol=1e-5)
    assert len(traces) == 1


class Routed(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = (torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh()) for _ in range(2))
        self.limit = 0.0

    def forward(self, x):
        x = self.first(x)
        return self.second(x) if x.sum().item() > self.limit else x


def test_a_model_that_runs_in_pieces_starts_again_without_a_trace(options, traces):
    model, counts = Routed(), []
    for _ in range(2):
        for x in (torch.ones(2, 4), -torch.ones(2, 4)):
            compiled = start(model, options)
            with pytest.warns(
                precast.GraphBreakWarning, match=r"test_standalone.py:[0-9]+[\s\S]*value of a tensor in Python"
            ):
                result = compiled(x)
            torch.testing.assert_close(result, model(x))
        counts.append(len(traces))
    assert counts[0] == counts[1]
    with pytest.raises(precast.errors.CaptureError, match="value of a tensor in Python"):
        precast.compile(model, options=options, dynamic=False, fullgraph=True)(torch.ones(2, 4))


def test_what_could_not_be_captured_is_traced_once_it_is_changed(options, traces, monkeypatch):
    model, x = Routed(), torch.ones(2, 4)
    with pytest.warns(precast.GraphBreakWarning):
        start(model, options)(x)
    monkeypatch.setattr(Routed, "forward", lambda self, x: self.second(self.first(x)))
    before = len(traces)
    torch.testing.assert_close(start(model, options)(x), model(x))
    assert len(traces) == before + 1


def test_what_traces_and_compiles_is_not_loaded_before_it_is_needed():
    code = "import sys, precast; precast.compile; import precast.native.backend; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    late = {"sympy", "precast.trace.record", "precast.trace.capture.prepare", "precast.native.split", "precast.export"}
    assert not late & set(done.stdout.split())
