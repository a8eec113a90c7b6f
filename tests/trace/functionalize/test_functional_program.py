"""Functional programs: no mutation left, signature says what changed, numbers as eager's."""

import pytest
import torch

from precast.graph.interpreter import interpret
from precast.graph.signature import OutputKind
from precast.ops.facts import is_mutating
from precast.trace.capture import Dim, capture
from precast.trace.functionalize import functionalize


def functional(function, *args, **options):
    return functionalize(capture(function, args, **options))


def assert_like_eager(function, *args):
    program = functional(function, *[arg.clone() for arg in args])
    assert not any(is_mutating(node) for node in program.graph.nodes)
    ours, eager = [arg.clone() for arg in args], [arg.clone() for arg in args]
    torch.testing.assert_close(interpret(program, *ours), function(*eager))
    torch.testing.assert_close(ours, eager)
    return program


def kinds(program):
    return [(spec.kind, spec.target) for spec in program.signature.outputs]


x = torch.arange(6.0).reshape(2, 3)


def test_a_write_to_an_input_becomes_an_output():
    program = assert_like_eager(lambda a: a.mul_(2) + 1, x)
    assert kinds(program) == [(OutputKind.USER_INPUT_MUTATION, "a"), (OutputKind.USER_OUTPUT, None)]


def test_a_write_through_a_view_reaches_its_base():
    def function(a):
        a.view(-1)[1:3].add_(10)
        a.t()[0].zero_()
        return a.sum()

    assert_like_eager(function, x)


def test_a_write_to_the_base_is_seen_in_its_views():
    def function(a):
        base = a * 2
        row = base[0]
        base.add_(1)
        return row

    assert_like_eager(function, x)


def test_several_writes_are_one_update():
    program = assert_like_eager(lambda a: a.add_(1).mul_(2).sub_(3), x)
    assert sum(kind is OutputKind.USER_INPUT_MUTATION for kind, _ in kinds(program)) == 1


def test_writes_to_intermediates_leave_no_trace():
    program = assert_like_eager(lambda a: (a * 2).add_(1), x)
    assert kinds(program) == [(OutputKind.USER_OUTPUT, None)]


def test_setting_by_index_and_by_mask():
    def function(a):
        a[0, 1] = 7
        a[a > 4] = 0
        a[:, -1] += 2
        return a

    assert_like_eager(function, x)


def test_out_variants():
    def function(a):
        result = torch.empty_like(a)
        torch.sin(a, out=result)
        return result

    assert_like_eager(function, x)


def test_buffers_of_batch_norm_are_updated():
    program = functional(torch.nn.BatchNorm1d(3).train(), x)
    targets = [target for kind, target in kinds(program) if kind is OutputKind.BUFFER_MUTATION]
    assert set(targets) == {"running_mean", "running_var", "num_batches_tracked"}


def test_parameters_written_under_no_grad():
    model = torch.nn.Linear(2, 2)

    def step(inputs):
        with torch.no_grad():
            model.weight.sub_(inputs)
        return model.weight.sum()

    program = functional(step, torch.eye(2))
    assert kinds(program)[0] == (OutputKind.PARAMETER_MUTATION, "model.weight")


def test_a_functional_program_stays_the_same_object():
    program = functional(lambda a: a.mul_(2), x)
    assert functionalize(program) is program


def test_the_captured_program_is_left_as_it_was():
    program = capture(lambda a: a.mul_(2).t_(), (x.clone(),))
    before = str(program)
    functionalize(program)
    assert str(program) == before


def test_random_numbers_come_in_the_same_order():
    def function(a):
        first = torch.rand(2, 3)
        a.uniform_()
        return first, torch.nn.functional.dropout(a, 0.5), torch.randn(2)

    program = functional(function, x.clone())
    assert program.boundary.is_random
    torch.manual_seed(5)
    expected = function(x.clone())
    torch.manual_seed(5)
    torch.testing.assert_close(interpret(program, x.clone()), expected)


def test_dead_random_operators_stay():
    program = functional(lambda a: (torch.rand(2), a + 1)[1], x)
    assert any("rand" in str(node.target) for node in program.graph.nodes)


def test_programs_without_randomness_say_so():
    assert not functional(lambda a: a + 1, x).boundary.is_random


def test_effects_stay_in_order():
    program = functional(lambda a: torch.linalg.inv(a) @ torch.linalg.inv(a + 1), torch.eye(2))
    effects = [node for node in program.graph.nodes if str(node.target) == "with_effects"]
    assert len(effects) == 2
    assert effects[0] in effects[1].args[0].args
    assert program.boundary.effect_tokens == 1
    with pytest.raises(RuntimeError, match="singular"):
        interpret(program, torch.zeros(2, 2))


def test_callers_do_not_see_tokens():
    program = functional(torch.linalg.inv, torch.eye(2))
    assert [spec.kind for spec in program.signature.outputs] == [OutputKind.USER_OUTPUT]


def test_symbolic_sizes_survive():
    program = functional(lambda a: a.view(-1).add_(1).view(a.shape), x, dynamic_shapes={"a": {0: Dim("rows")}})
    inputs = torch.ones(5, 3)
    torch.testing.assert_close(interpret(program, inputs), torch.full((5, 3), 2.0))
    torch.testing.assert_close(inputs, torch.full((5, 3), 2.0))


def test_guards_of_the_functional_run_are_kept():
    program = capture(lambda a: a.add_(1), (x.clone(),), dynamic_shapes={"a": {0: Dim("rows")}})
    rows = program.placeholders[0].meta["val"].shape[0]
    assert rows < 100
    (guard,) = functionalize(program).sizes.guards
    assert str(guard.condition).endswith("< 100")


def test_sizes_that_depend_on_data_survive():
    program = functional(lambda a: a[a > 2].add_(1), x)
    torch.testing.assert_close(interpret(program, x), torch.tensor([4.0, 5.0, 6.0]))


def test_intermediate_bases_are_returned_last():
    def function(a):
        base = a * 2
        return base[0], base[1]

    program = functional(function, x)
    assert [kind for kind, _ in kinds(program)] == [
        OutputKind.USER_OUTPUT,
        OutputKind.USER_OUTPUT,
        OutputKind.INTERMEDIATE_BASE,
    ]
