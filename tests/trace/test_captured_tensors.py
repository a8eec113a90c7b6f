"""Tensors that a program meets without being given them."""

import pytest
import torch

from precast.graph.interpreter import interpret
from precast.graph.signature import InputKind
from precast.trace.capture import capture
from precast.trace.functionalize import functionalize


def kinds(program):
    return {spec.target: spec.kind for spec in program.signature.inputs if spec.target is not None}


def test_closure_tensors_become_constants_under_their_name():
    scale = torch.tensor([2.0, 3.0])
    program = capture(lambda x: x * scale, (torch.ones(2),))
    assert kinds(program) == {"scale": InputKind.CONSTANT_TENSOR}
    assert program.state["scale"] is scale
    torch.testing.assert_close(interpret(program, torch.ones(2)), scale)


def test_a_closure_tensor_that_is_used_twice_is_lifted_once():
    scale = torch.ones(2)
    program = capture(lambda x: (x * scale) + scale, (torch.ones(2),))
    assert list(kinds(program)) == ["scale"]


def test_gradients_flow_to_closure_tensors():
    weight = torch.tensor([2.0, 3.0], requires_grad=True)

    def gradient(x):
        return torch.autograd.grad((x * weight).sum(), weight)[0]

    program = capture(gradient, (torch.tensor([5.0, 7.0]),))
    torch.testing.assert_close(interpret(program, torch.tensor([5.0, 7.0])), torch.tensor([5.0, 7.0]))
    assert weight.grad is None


def test_gradients_flow_to_parameters_of_a_module_in_a_closure():
    linear = torch.nn.Linear(2, 1)

    def gradient(x):
        return torch.autograd.grad(linear(x).sum(), linear.weight)[0]

    program = capture(gradient, (torch.ones(3, 2),))
    assert kinds(program)["linear.weight"] is InputKind.PARAMETER
    torch.testing.assert_close(interpret(program, torch.ones(3, 2)), torch.full((1, 2), 3.0))


def test_tensors_in_nested_arguments_are_found():
    pieces = [torch.zeros(1), torch.ones(1)]
    program = capture(lambda x: torch.cat([x, *pieces]), (torch.ones(2),))
    torch.testing.assert_close(interpret(program, torch.ones(2)), torch.tensor([1.0, 1.0, 0.0, 1.0]))


def test_custom_autograd_functions_see_stand_ins():
    weight = torch.tensor(3.0, requires_grad=True)

    class Multiply(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, w):
            ctx.save_for_backward(x, w)
            return x * w

        @staticmethod
        def backward(ctx, gradient):
            x, w = ctx.saved_tensors
            return gradient * w, (gradient * x).sum()

    def function(x):
        return torch.autograd.grad(Multiply.apply(x, weight).sum(), weight)[0]

    program = capture(function, (torch.ones(2),))
    assert interpret(program, torch.full((2,), 4.0)) == 8.0


def test_literals_become_constants():
    program = capture(lambda x: x + torch.tensor([1.0, 2.0]), (torch.ones(2),))
    assert list(kinds(program).values()) == [InputKind.CONSTANT_TENSOR]
    torch.testing.assert_close(interpret(program, torch.zeros(2)), torch.tensor([1.0, 2.0]))


def test_constants_that_are_not_used_are_no_inputs():
    def function(x):
        torch.tensor([1.0, 2.0]).sum()
        return x + 1

    assert kinds(capture(function, (torch.ones(2),))) == {}


def test_numpy_arrays_become_constants():
    import numpy

    array = numpy.arange(3.0)
    program = capture(lambda x: x + torch.from_numpy(array), (torch.zeros(3, dtype=torch.float64),))
    torch.testing.assert_close(interpret(program, torch.zeros(3, dtype=torch.float64)), torch.from_numpy(array))


def test_the_users_tensors_are_left_alone():
    scale = torch.ones(2, requires_grad=True)
    before = scale._version
    functionalize(capture(lambda x: x * scale, (torch.ones(2),)))
    assert scale._version == before
    assert scale.grad_fn is None


@pytest.mark.parametrize("attribute", ["T", "data", "mT"])
def test_attributes_of_closure_tensors_are_stand_ins_too(attribute):
    matrix = torch.arange(4.0).reshape(2, 2)
    program = capture(lambda x: x + getattr(matrix, attribute), (torch.zeros(2, 2),))
    torch.testing.assert_close(interpret(program, torch.zeros(2, 2)), getattr(matrix, attribute))
