"""Backwards cut so that what the forward saved is freed on the way."""

import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef

import precast
from precast.graph.nodes import placeholders_of
from precast.native import split as native_cuts
from precast.native.split import split_graph
from tests.autograd.like_eager import CompilationCount


@pytest.fixture
def small_cuts(monkeypatch):
    monkeypatch.setattr(native_cuts, "MIN_FREED", 2**12)


def layers() -> torch.nn.Module:
    return torch.nn.Sequential(*(torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.Tanh()) for _ in range(6)))


def graphs_of(model: torch.nn.Module) -> tuple[torch.fx.GraphModule, torch.fx.GraphModule]:
    forward, backward = CompilationCount(), CompilationCount()
    compiled = precast.aot_module(model, forward, bw_compiler=backward)
    compiled(torch.randn(64, 32)).sum().backward()
    return forward.graphs[0], backward.graphs[0]


def test_a_backward_is_cut_and_a_forward_is_not(small_cuts):
    forward, backward = (split_graph(graph, "cpu") for graph in graphs_of(layers()))
    assert len(forward.segments) == 1
    assert len(backward.segments) > 3
    saved = native_cuts.saved_inputs(backward.module.graph)
    assert saved
    for earlier, later in zip(backward.segments, backward.segments[1:], strict=False):
        # Little is handed over: the gradient of one layer, or two.
        assert 0 < len(set(earlier.outputs) & set(later.inputs)) <= 2


def test_small_backwards_stay_whole():
    _, backward = graphs_of(layers())
    assert len(split_graph(backward, "cpu").segments) == 1


def test_no_cut_parts_an_operator_from_its_results(small_cuts):
    model = torch.nn.Sequential(*(torch.nn.LayerNorm(32) for _ in range(6)))
    _, backward = graphs_of(model)
    split = split_graph(backward, "cpu")
    assert len(split.segments) > 1
    for segment in split.segments:
        assert all(isinstance(node.meta["val"], torch.Tensor) for node in (*segment.inputs, *segment.outputs))


def test_gradients_are_the_same(small_cuts):
    model, x = layers(), torch.randn(64, 32)
    model(x).sum().backward()
    expected = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    precast.compile(model)(x).sum().backward()
    torch.testing.assert_close([parameter.grad for parameter in model.parameters()], expected)


@pytest.mark.parametrize("retain_graph", [False, True])
def test_what_was_saved_is_freed_before_the_backward_ends(retain_graph):
    alive: list[bool] = []

    def compiler(graph, example_inputs):
        placeholders = placeholders_of(graph.graph)
        saved = [i for i, node in enumerate(placeholders) if node in native_cuts.saved_inputs(graph.graph)]

        def run(inputs):
            watched = [StorageWeakRef(inputs[i].untyped_storage()) for i in saved]
            results = graph(*inputs)
            inputs.clear()
            alive.extend(not each.expired() for each in watched)
            return results

        run._boxed_call = True
        return run

    compiled = precast.aot_function(lambda x: x.sin().exp().sum(), lambda graph, _: graph, bw_compiler=compiler)
    compiled(torch.randn(8, requires_grad=True)).backward(retain_graph=retain_graph)
    assert alive
    assert all(each == retain_graph for each in alive)
