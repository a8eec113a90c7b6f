"""Frozen programs: parameters are constants, what follows from them is computed once, gradients are refused."""

import copy

import pytest
import torch
from torch import nn

import precast
from precast.autograd.state_slots import ModuleSlots
from precast.errors import FreezeError
from precast.native.graph_passes.freezing import freeze_graph
from tests.native.lowering.pipeline import trace


def network() -> nn.Module:
    torch.manual_seed(0)
    layers = nn.Sequential(
        nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.ConvTranspose2d(8, 5, 2), nn.BatchNorm2d(5),
        nn.Flatten(), nn.Linear(5 * 49, 4), nn.GELU(),
    )  # fmt: skip
    for layer in layers:
        if isinstance(layer, nn.BatchNorm2d):
            nn.init.uniform_(layer.running_var, 0.5, 2)
            for each in (layer.running_mean, layer.weight, layer.bias):
                nn.init.normal_(each)
    return layers.eval()


def frozen(module: nn.Module) -> nn.Module:
    return precast.compile(module, options={"freeze": True})


IMAGES = torch.randn(2, 3, 8, 8)


def test_results_are_those_of_eager():
    module = network()
    compiled = frozen(module)
    with torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(compiled(IMAGES), module(IMAGES), rtol=1e-4, atol=1e-5)


def test_gradients_are_refused():
    with pytest.raises(FreezeError, match="no_grad"):
        frozen(network())(IMAGES)


def test_without_freezing_an_update_is_seen():
    module = network()
    compiled = precast.compile(module)
    with torch.no_grad():
        compiled(IMAGES)
        for parameter in module.parameters():
            parameter.data += 0.5
        torch.testing.assert_close(compiled(IMAGES), module(IMAGES), rtol=1e-4, atol=1e-5)


def test_a_buffer_that_the_model_updates_stays_a_buffer():
    class Counter(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("count", torch.zeros(1))
            self.register_buffer("step", torch.ones(1))

        def forward(self, x):
            self.count += self.step
            return x + self.count

    module = Counter()
    compiled = frozen(copy.deepcopy(module))
    with torch.no_grad():
        assert [compiled(torch.zeros(1)).item() for _ in range(3)] == [1, 2, 3]


def test_several_sizes_share_the_parameters():
    module = network()
    compiled = precast.compile(module, options={"freeze": True}, dynamic=True)
    with torch.no_grad():
        for rows in (1, 3, 5):
            images = torch.randn(rows, 3, 8, 8)
            torch.testing.assert_close(compiled(images), module(images), rtol=1e-4, atol=1e-5)


def targets(graph_module: torch.fx.GraphModule) -> list[str]:
    return [str(node.target) for node in graph_module.graph.nodes if node.op == "call_function"]


def test_batch_norm_goes_into_the_convolution():
    module = network()
    names, values = zip(*[(name, each) for name, each in module[:2].state_dict().items() if each.ndim], strict=True)

    def run(x, *state):
        with torch.no_grad():
            return torch.func.functional_call(module[:2], dict(zip(names, state, strict=True)), (x,))

    traced = trace(run, [IMAGES, *values])
    placeholders = [node.name for node in traced.graph.nodes if node.op == "placeholder"]
    graph = freeze_graph(traced, dict(zip(placeholders[1:], values, strict=True)))
    assert targets(graph) == ["aten.convolution.default"]


def test_what_depends_on_constants_alone_is_computed_once():
    def run(x, w):
        return x + w.t().exp() @ w + torch.arange(4)

    traced = trace(run, [torch.zeros(4, 4), torch.ones(4, 4)])
    weight = [node.name for node in traced.graph.nodes if node.op == "placeholder"][1]
    graph = freeze_graph(traced, {weight: torch.ones(4, 4)})
    assert sorted(targets(graph)) == ["aten.add.Tensor", "aten.add.Tensor", "aten.arange.default"]
    torch.testing.assert_close(graph(torch.zeros(4, 4)), run(torch.zeros(4, 4), torch.ones(4, 4)))


def test_calls_like_the_first_do_not_read_the_state(monkeypatch: pytest.MonkeyPatch) -> None:
    module, images = network(), torch.randn(2, 3, 8, 8)
    compiled = frozen(module)
    with torch.no_grad():
        compiled(images)
        monkeypatch.setattr(ModuleSlots, "read", lambda slots: pytest.fail("the state was read again"))
        for _ in range(3):
            torch.testing.assert_close(compiled(images), module(images))


def test_constants_go_to_torch_and_to_the_caller() -> None:
    class Solved(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.matrix = nn.Parameter(torch.eye(4) * 2)

        def forward(self, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return torch.linalg.solve(self.matrix, values + 1) * self.matrix, self.matrix.exp()

    module, values = Solved(), torch.randn(4, 4)
    compiled = frozen(module)
    with torch.no_grad():
        torch.testing.assert_close(compiled(values), module(values))
