"""The ready-made ways into AOT autograd."""

import pytest
import torch

from precast.backend import Backend, get_backend
from precast.compilers import fusion, memory_efficient_fusion, nnc_jit, nop
from precast.native import compiler as native

pytestmark = pytest.mark.filterwarnings("ignore:TorchScript is deprecated")


def function(x, weight):
    return torch.nn.functional.silu(x @ weight).sum(dim=1)


def inputs():
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator).requires_grad_() for shape in ((5, 3), (3, 4))]


def assert_same_values_and_gradients(compiled):
    ours, eager = inputs(), inputs()
    result, expected = compiled(*ours), function(*eager)
    result.sum().backward()
    expected.sum().backward()
    torch.testing.assert_close(result, expected)
    for value, wanted in zip(ours, eager, strict=True):
        torch.testing.assert_close(value.grad, wanted.grad)


def test_nnc_jit_computes_values_and_gradients():
    assert_same_values_and_gradients(nnc_jit(function))


def test_fused_function_computes_values_and_gradients():
    assert_same_values_and_gradients(memory_efficient_fusion(function))


def test_fused_module_computes_values_and_gradients():
    module = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.GELU())
    fused = memory_efficient_fusion(module)
    assert isinstance(fused, torch.nn.Module)
    x = torch.randn(2, 3)
    fused(x).sum().backward()
    gradient, module[0].weight.grad = module[0].weight.grad, None
    module(x).sum().backward()
    torch.testing.assert_close(gradient, module[0].weight.grad)


def test_override_replaces_the_choice():
    seen = []

    def compiler(graph_module, example_inputs):
        seen.append(graph_module)
        return nop(graph_module, example_inputs)

    assert_same_values_and_gradients(memory_efficient_fusion(function, fw_compiler=compiler))
    assert len(seen) == 2


def test_operators_are_taken_apart_as_the_native_backend_wants_them():
    seen = []

    def compiler(graph_module, example_inputs):
        seen.extend(node.target for node in graph_module.graph.nodes)
        return graph_module

    assert_same_values_and_gradients(memory_efficient_fusion(function, fw_compiler=compiler))
    assert not set(seen) & set(get_backend("native").decompositions)


@pytest.mark.parametrize(
    ("devices", "expected"), [(["cpu", "cpu"], "native"), (["meta"], "ts"), (["cpu", "meta"], "ts"), ([], "ts")]
)
def test_backend_is_chosen_by_device(monkeypatch, devices, expected):
    monkeypatch.setattr(fusion, "list_backends", lambda: ["native", "ts"])
    monkeypatch.setattr(fusion, "get_backend", lambda name: Backend(name, lambda graph_module, example_inputs: name))
    assert fusion.FastestCompiler()(None, [torch.empty(1, device=device) for device in devices]) == expected


def test_backend_that_is_not_there_yet_is_passed_over(monkeypatch):
    monkeypatch.setattr(fusion, "list_backends", lambda: ["ts"])
    monkeypatch.setattr(fusion, "get_backend", lambda name: Backend(name, lambda graph_module, example_inputs: name))
    assert fusion.FastestCompiler()(None, [torch.empty(1)]) == "ts"


def test_what_was_compiled_is_found_again(monkeypatch, tmp_path):
    monkeypatch.setenv("PRECAST_CACHE_DIR", str(tmp_path))
    lowered = []
    original = native.lower_segments
    monkeypatch.setattr(
        native, "lower_segments", lambda split, *a, **k: lowered.append(split) or original(split, *a, **k)
    )
    for _ in range(2):
        assert_same_values_and_gradients(memory_efficient_fusion(function))
    assert len(lowered) == 2  # a forward and a backward, once
