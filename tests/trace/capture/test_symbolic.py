"""Symbolic tracing: what is recorded, what is refused, and that nothing stays changed."""

import pytest
import torch
from torch import fx, nn

from precast.errors import CaptureError, DataDependentError, InputTypeError
from precast.trace.capture.symbolic import _INQUIRERS, _MAKERS, recorded_factories, symbolic_trace


def operations(traced: fx.GraphModule) -> list[str]:
    return [node.op for node in traced.graph.nodes]


def targets(traced: fx.GraphModule) -> list[object]:
    return [node.target for node in traced.graph.nodes if node.op in ("call_function", "call_method")]


def test_submodules_become_operators():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(4, 2)).eval()
    traced = symbolic_trace(model)
    assert "call_module" not in operations(traced)
    x = torch.randn(2, 3, 3, 3)
    torch.testing.assert_close(traced(x), model(x))


@pytest.mark.parametrize(
    ("layer", "shape"),
    [(nn.GroupNorm(2, 4), (2, 4, 3)), (nn.BatchNorm2d(4), (2, 4, 3, 3)), (nn.BatchNorm1d(4).train(), (2, 4))],
)
def test_torchs_checks_of_inputs_are_no_branches(layer: nn.Module, shape: tuple[int, ...]):
    x = torch.randn(shape)
    torch.testing.assert_close(symbolic_trace(layer)(x), layer(x))


class Counter(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("count", torch.zeros(()))
        self.register_buffer("table", torch.ones(3, 2))

    def forward(self, x):
        self.count += 1
        for row in range(self.table.shape[0]):
            x = x + self.table[row]
        return x * self.count


def test_updates_of_buffers_are_recorded_and_not_done():
    model = Counter()
    traced = symbolic_trace(model)
    assert model.count == 0
    x = torch.ones(2)
    assert [traced(x)[0].item() for _ in range(2)] == [4, 8]
    assert model.count == 2


def test_batch_normalization_counts_when_it_runs():
    model = nn.BatchNorm1d(2).train()
    traced = symbolic_trace(model)
    assert model.num_batches_tracked == 0
    traced(torch.randn(4, 2))
    assert model.num_batches_tracked == 1


def test_a_model_on_meta_stays_there():
    traced = symbolic_trace(nn.Linear(10**6, 10**6, device="meta"))
    assert all(parameter.is_meta for parameter in traced.parameters())


def test_weights_are_shared_not_copied():
    model = nn.Linear(2, 3)
    assert symbolic_trace(model).weight is model.weight


def test_a_plain_function():
    traced = symbolic_trace(lambda x, y: torch.relu(x) + y)
    assert [node.name for node in traced.graph.nodes][:2] == ["x", "y"]
    assert traced(-torch.ones(1), torch.ones(1)).item() == 1


def test_arguments_with_defaults_are_constants():
    traced = symbolic_trace(lambda x, scale=3, bias=None: x * scale if bias is None else x + bias)
    assert operations(traced).count("placeholder") == 1
    assert traced(torch.ones(1)).item() == 3


def test_concrete_arguments_specialize():
    def function(x, mode, *, extra=None):
        return x + extra if mode == "add" else x

    traced = symbolic_trace(function, {"mode": "add", "extra": torch.ones(1)})
    assert [node.target for node in traced.graph.nodes if node.op == "placeholder"] == ["x", "extra"]
    assert traced(torch.ones(1), torch.ones(1)).item() == 2


def test_containers_of_tensors_are_flattened():
    def function(pair):
        return pair["a"] - pair["b"][0] * pair["b"][1]

    traced = symbolic_trace(function, {"pair": {"a": torch.ones(1), "b": [torch.ones(1), 2]}})
    assert [node.target for node in traced.graph.nodes if node.op == "placeholder"] == ["pair_a", "pair_b_0"]
    assert traced(torch.tensor(5), torch.tensor(1)).item() == 3


def test_rest_and_keyword_arguments():
    def function(*tensors, **named):
        return tensors[0] + tensors[1] + named["last"]

    traced = symbolic_trace(function, {"tensors": [torch.ones(1)] * 2, "last": torch.ones(1)})
    assert operations(traced).count("placeholder") == 3


def test_unknown_concrete_argument():
    with pytest.raises(InputTypeError, match="concrete_args names y"):
        symbolic_trace(lambda x: x, {"y": 1})


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x + torch.arange(x.shape[0]),
        lambda x: x + torch.full((x.shape[0],), 2.0),
        lambda x: x + torch.zeros(x.size(0)) + torch.ones(3),
        lambda x: x + torch.tensor([1.0, 2.0, 3.0], dtype=x.dtype),
        lambda x: x.clamp(min=torch.finfo(x.dtype).tiny),
        lambda x: x + torch.eye(3).sum(0) * torch.linspace(0, 1, 3),
        lambda x: x + torch.scalar_tensor(2.0),
    ],
)
def test_tensors_made_inside_are_recorded(function):
    x = torch.ones(3)
    torch.testing.assert_close(symbolic_trace(function)(x), function(x))


def test_no_tensor_is_baked_in():
    traced = symbolic_trace(lambda x: x + torch.ones(3) + torch.tensor(2.0))
    assert "get_attr" not in operations(traced)


def test_a_branch_on_a_traced_value_names_the_line():
    def function(x):
        if x.sum() > 0:
            return x
        return -x

    with pytest.raises(DataDependentError, match="branches in Python") as caught:
        symbolic_trace(function)
    assert "if x.sum() > 0:" in str(caught.value)


def test_a_branch_can_be_assumed_not_taken():
    traced = symbolic_trace(lambda x: x if x.sum() > 0 else -x, assume_false=True)
    assert traced(torch.ones(1)).item() == -1


def test_unknown_length_names_the_line():
    def function(x):
        return [row + 1 for row in x]

    with pytest.raises(CaptureError, match="iterated over") as caught:
        symbolic_trace(function)
    assert "for row in x" in str(caught.value)


class PlantedError(Exception):
    pass


def raises_in_the_middle(x):
    torch.arange(x.shape[0])
    raise PlantedError


@pytest.mark.parametrize("function", [raises_in_the_middle, lambda x: 1 if x else 2, lambda x: list(x)])
def test_everything_is_put_back_when_tracing_fails(function):
    model = nn.Sequential(nn.Linear(2, 2))
    model.extra = function

    class Failing(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = model

        def forward(self, x):
            return function(self.inner(x))

    before = {name: getattr(torch, name) for name in (*_MAKERS, *_INQUIRERS)}
    methods, grad_mode = (nn.Module.__call__, nn.Module.__getattr__, nn.Module.__setattr__), torch.is_grad_enabled()
    failing = Failing()
    attributes = dict(failing.__dict__)
    with pytest.raises((PlantedError, CaptureError)):
        symbolic_trace(failing)
    assert {name: getattr(torch, name) for name in before} == before
    assert (nn.Module.__call__, nn.Module.__getattr__, nn.Module.__setattr__) == methods
    assert torch.is_grad_enabled() == grad_mode
    assert failing.__dict__ == attributes


def test_factories_are_put_back_when_exchanging_them_fails(monkeypatch):
    before = {name: getattr(torch, name) for name in _MAKERS}
    monkeypatch.setattr("precast.trace.capture.symbolic._recording", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError), recorded_factories(fx.Tracer()):
        pass
    assert {name: getattr(torch, name) for name in before} == before
