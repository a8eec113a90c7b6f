"""ATen graphs become loop programs that compute the same."""

import pytest
import torch

from precast.errors import LoweringError
from precast.native.loops.interpreter import interpret
from precast.native.loops.printer import print_program
from precast.native.loops.program import FallbackStep
from precast.native.rules import lower_graph
from precast.native.rules.registry import lowering
from tests.native.lowering.pipeline import bullet_inputs, lowered, trace, tracer_bullet

aten = torch.ops.aten


def test_the_tracer_bullet_lowers_node_by_node(assert_golden):
    assert_golden("bullet_lowered", print_program(lowered(tracer_bullet, *bullet_inputs())))


@pytest.mark.parametrize("dynamic", [False, True])
def test_the_lowered_bullet_computes_what_eager_computes(dynamic):
    inputs = bullet_inputs(torch.float64)
    program = lowered(tracer_bullet, *inputs, dynamic=dynamic)
    for mine, eager in zip(interpret(program, inputs), tracer_bullet(*inputs), strict=True):
        torch.testing.assert_close(mine, eager)


def test_a_second_rule_for_one_operator_is_refused():
    with pytest.raises(AssertionError, match=r"aten\.add\.Tensor has a lowering rule already"):
        lowering(aten.add.Tensor)(lambda builder: None)


def test_an_operator_without_a_rule_becomes_a_fallback_step():
    program = lowered(lambda x: torch.mode(x)[0], torch.randn(3, 3))
    (step,) = program.steps
    assert isinstance(step, FallbackStep)
    assert step.operator == "aten.mode.default"


def test_a_program_that_must_run_without_torch_names_all_its_fallbacks():
    graph = trace(lambda x: torch.mode(torch.linalg.ldl_factor(x)[0])[0], [torch.randn(3, 3)])
    with pytest.raises(LoweringError, match=r"linalg_ldl_factor.*mode"):
        lower_graph(graph, fallbacks=False)


def test_a_type_that_is_not_compiled_is_named():
    with pytest.raises(LoweringError, match="complex64"):
        lowered(lambda x: x + 1, torch.zeros(2, dtype=torch.complex64))


def test_more_dims_than_the_c_interface_has_are_refused():
    with pytest.raises(LoweringError, match="17 dims"):
        lowered(lambda x: x + 1, torch.zeros((1,) * 17))


def test_returning_an_input_or_one_value_twice_gives_memory_of_its_own():
    program = lowered(lambda x: (x, (y := x * 2), y), torch.ones(2))
    assert len({buffer.name for buffer in program.outputs} | {"arg0_1"}) == 4


def test_results_that_are_no_tensors_pass_through():
    program = lowered(lambda x: (None, x.shape[0], x * 2), torch.ones(3, 2), dynamic=True)
    assert [type(each).__name__ for each in program.results] == ["NoneType", "Index", "Buffer"]


def test_reading_memory_beyond_a_tensor_is_refused():
    with pytest.raises(LoweringError, match="reads beyond the tensor"):
        lowered(lambda x: torch.as_strided(x[1:], (3,), (1,)) * 2, torch.ones(6))


def test_what_is_returned_lies_as_in_eager_whatever_its_rule_made():
    images = torch.randn(2, 2, 6, 12).contiguous(memory_format=torch.channels_last)
    pooled, places = torch.nn.functional.max_pool2d(images, 2, return_indices=True)

    def backward(gradient, images, places):
        return aten.max_pool2d_with_indices_backward(gradient, images, [2, 2], [2, 2], [0, 0], [1, 1], False, places)

    (result,) = lowered(backward, pooled, images, places).outputs
    assert [stride.constant for stride in result.strides] == list(images.stride())
