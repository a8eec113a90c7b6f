"""Regions that are compiled once: functions of the model, defined once and called wherever the original calls them."""

from typing import Any

import pytest
import torch
from torch import nn
from torch._higher_order_ops.invoke_subgraph import invoke_subgraph
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional

from precast.onnx import ONNXProgram, export

region = torch.compiler.nested_compile_region


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.layer = nn.LayerNorm(32), nn.Linear(32, 32)

    @region
    def forward(self, x):
        return functional.gelu(self.layer(self.norm(x))) * x.shape[0] + x


class Blocks(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.Sequential(*(Block() for _ in range(3)))

    def forward(self, x):
        return self.blocks(x)


def calls(program: ONNXProgram) -> list[str]:
    return [node.op_type for node in program.model.graph if node.domain == "precast.regions"]


def definitions(program: ONNXProgram) -> list[str]:
    return [function.name for function in program.model.functions.values()]


def assert_equal_at_other_sizes(model: Any, *, rows: tuple[int, ...] = (4, 5), **options: Any) -> ONNXProgram:
    program = export(model, (torch.randn(3, 32),), dynamic_shapes=({0: "rows"},), **options)
    for count in rows:
        x = torch.randn(count, 32)
        torch.testing.assert_close(program.call_as_model(x), model(x), rtol=1e-3, atol=1e-4)
    return program


@pytest.mark.parametrize("options", [{}, {"optimize": False}, {"opset_version": 17}, {"opset_version": 23}], ids=str)
def test_a_layer_is_defined_once_and_called_with_its_weights(options: dict[str, Any]):
    program = assert_equal_at_other_sizes(Blocks(), **options)
    program.optimize()
    assert calls(program) == ["Block"] * 3
    assert definitions(program) == ["Block"]
    assert {node.inputs[1].name for node in program.model.graph} <= set(program.model.graph.initializers)


def test_weights_in_functions_are_quantized():
    program = export(Blocks(), (torch.randn(3, 32),)).quantized("int8")
    assert "DequantizeLinear" in [node.op_type for node in program.model.graph]
    assert "off by" in str(program.verification)


def test_other_definitions_are_other_functions():
    @region
    def scaled(x, factor):
        return x * factor

    program = assert_equal_at_other_sizes(lambda x: scaled(scaled(scaled(x, 2.0), 3.0), 2.0))
    assert calls(program) == ["scaled", "scaled_1", "scaled"]


def test_functions_call_functions_and_are_called_in_branches():
    weight = torch.randn(32, 32)

    @region
    def inner(x):
        return torch.tanh(x @ weight)

    @region
    def outer(x):
        return inner(x) + inner(x * 2)

    def run(x):
        x = torch.cond(x.shape[0] > 3, lambda x: outer(x), lambda x: x - 1, (x,))
        return outer(x)

    program = assert_equal_at_other_sizes(run)
    assert sorted(definitions(program)) == ["inner", "outer"]
    assert calls(program) == ["outer"]


def test_trees_numbers_and_sizes_go_in_and_out():
    @region
    def both(x, *, options):
        return {"x": x * options["scale"], "rows": [x[: options["rows"]], x.shape[0], None, "name"]}

    def run(x):
        result = both(x, options={"scale": 3, "rows": x.shape[0] - 1})
        return result["x"] + result["rows"][1], result["rows"][0], x

    assert len(definitions(assert_equal_at_other_sizes(run))) == 1


def test_regions_that_write_into_tensors_from_outside_are_inlined():
    class Counted(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("count", torch.zeros(()))

        @region
        def forward(self, x):
            self.count += 1
            return x + self.count

    program = export(Counted(), (torch.randn(3),))
    assert not definitions(program)
    assert program.updates == ("updated_count",)


def test_operators_of_regions_are_widened_where_the_runtime_lacks_kernels():
    @region
    def gated(x):
        return functional.softplus(x) + functional.gelu(x)

    program = export(lambda x: gated(gated(x)), (torch.randn(3).bfloat16(),))
    assert calls(program) == ["gated", "gated"]
    assert "rounded" in str(program.verification)


def test_graphs_that_were_traced_before():
    graph = make_fx(lambda x, weight: (torch.tanh(x @ weight) + 1,))(torch.ones(2, 3), torch.ones(3, 3))

    def run(x, first, second):
        (y,) = invoke_subgraph(graph, "gate", x, first)
        return invoke_subgraph(graph, "gate", y, second)[0]

    program = export(run, call := (torch.randn(2, 3), torch.randn(3, 3), torch.randn(3, 3)))
    torch.testing.assert_close(program.call_as_model(*call), run(*call))
    assert calls(program) == ["gate", "gate"]
    assert definitions(program) == ["gate"]
