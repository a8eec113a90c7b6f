"""The reference interpreter: trees, state, effects on inputs, and calls that do not fit."""

import pytest
import torch

from precast.errors import InputValueError
from precast.graph.interpreter import interpret
from precast.trace.capture import Dim, capture
from precast.trace.functionalize import functionalize
from tests.graph.programs import Scale


def functional(function, *args):
    return functionalize(capture(function, args))


def test_results_come_back_in_the_callables_tree():
    program = capture(lambda x: {"sum": x + 1, "rest": [x, None, 3]}, (torch.ones(2),))
    result = interpret(program, torch.zeros(2))
    assert result["rest"][1:] == [None, 3]
    torch.testing.assert_close(result["sum"], torch.ones(2))


def test_state_is_read_from_the_module_now():
    model = Scale()
    program = capture(model, (torch.ones(2, 4),))
    with torch.no_grad():
        model.linear.bias.fill_(7.0)
        model.linear.weight.zero_()
    torch.testing.assert_close(interpret(program, torch.ones(2, 4)), torch.full((2, 3), 7.0))


def test_other_state_can_be_given():
    program = capture(torch.nn.Linear(2, 2, bias=False), (torch.ones(1, 2),))
    torch.testing.assert_close(interpret(program, torch.ones(1, 2), state={"weight": torch.eye(2)}), torch.ones(1, 2))


def test_buffers_are_updated_once_a_call():
    model = Scale()
    program = functionalize(capture(model, (torch.ones(2, 4),)))
    for _ in range(3):
        interpret(program, torch.ones(2, 4))
    assert model.calls == 3


def test_data_mutation_lands_in_the_callers_tensor():
    x = torch.ones(3)
    interpret(functional(lambda x: x.mul_(2), torch.ones(3)), x)
    torch.testing.assert_close(x, torch.full((3,), 2.0))


def test_transposition_lands_in_the_callers_tensor():
    memory = torch.arange(12.0).reshape(3, 4)
    x = memory[:, ::2]
    interpret(functional(lambda x: x.add_(1).t_(), torch.ones(3, 4)[:, ::2]), x)
    assert (x.shape, x.stride()) == ((2, 3), (2, 4))
    torch.testing.assert_close(memory[:, ::2], torch.arange(12.0).reshape(3, 4)[:, ::2] + 1)


def test_resizing_lands_in_the_callers_tensor():
    x = torch.ones(2)
    interpret(functional(lambda x: x.resize_(2, 2).fill_(3), torch.ones(2)), x)
    torch.testing.assert_close(x, torch.full((2, 2), 3.0))


def test_exchanged_memory_lands_in_the_callers_tensor():
    x, y = torch.ones(2), torch.arange(3.0)
    interpret(functional(lambda x, y: x.set_(y * 2), torch.ones(2), torch.ones(3)), x, y)
    torch.testing.assert_close(x, y * 2)


def test_same_seed_gives_eagers_random_numbers():
    def function(x):
        return torch.nn.functional.dropout(x, 0.5) + torch.rand_like(x)

    program = functional(function, torch.ones(100))
    torch.manual_seed(3)
    expected = function(torch.ones(100))
    torch.manual_seed(3)
    torch.testing.assert_close(interpret(program, torch.ones(100)), expected)


def test_another_tree_is_refused():
    program = capture(lambda pair: pair[0] + pair[1], ((torch.ones(2), torch.ones(2)),))
    with pytest.raises(InputValueError, match="2 positional arguments instead of 1"):
        interpret(program, torch.ones(2), torch.ones(2))


def test_another_python_value_is_refused():
    program = capture(lambda x, factor: x * factor, (torch.ones(2), 3))
    with pytest.raises(InputValueError, match=r"args\[1\] is 4, but the program was captured with 3"):
        interpret(program, torch.ones(2), 4)


def test_true_is_not_one():
    program = capture(lambda x, flag: x if flag is True else -x, (torch.ones(2), True))
    with pytest.raises(InputValueError, match=r"args\[1\] is 1, but"):
        interpret(program, torch.ones(2), 1)


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (torch.ones(2, 5), r"args\[0\].shape\[1\] is 5, but the program was captured with 3"),
        (torch.ones(100, 3), r"x.shape\[0\] is 100, outside of batch in 1..64"),
        (torch.ones(2, 3, 1), r"args\[0\] has 3 dimensions, but the program was captured with 2"),
        (torch.ones(2, 3, dtype=torch.float64), r"args\[0\] is torch.float64, but the program was captured with"),
        (3, r"args\[0\] is 3, but the program was captured with a tensor"),
    ],
)
def test_tensors_that_do_not_fit_are_refused(x, message):
    program = capture(lambda x: x + 1, (torch.ones(2, 3),), dynamic_shapes={"x": {0: Dim("batch", min=1, max=64)}})
    with pytest.raises(InputValueError, match=message):
        interpret(program, x)


def test_sizes_that_break_a_relation_are_refused():
    batch = Dim("batch")
    program = capture(
        lambda x, y: x.sum() + y.sum(),
        (torch.ones(3), torch.ones(6)),
        dynamic_shapes={"x": {0: batch}, "y": {0: 2 * batch}},
    )
    with pytest.raises(InputValueError, match=r"args\[1\].shape\[0\] is 7, but the other sizes make it 8"):
        interpret(program, torch.ones(4), torch.ones(7))
