"""What autograd knows of the outputs of a compiled call: whether they require grad, are leaves, are views."""

import pytest
import torch

from precast.autograd import aot_function
from precast.compilers import nop
from precast.errors import CaptureError


def plain():
    return [torch.tensor([[0.0, 1.0], [2.0, 3.0]])]


def leaf():
    return [plain()[0].requires_grad_()]


def leaf_that_is_a_view():
    return [torch.arange(4.0).view(2, 2).requires_grad_()]


def result():
    return [leaf()[0] * 1]


def view_of_input_that_requires_grad_now(x):
    return x.view(-1).requires_grad_()


def fresh_leaf(x):
    return (x.detach() * 2).requires_grad_()


def leaf_and_its_view(x):
    z = (x.detach() * 2).requires_grad_()
    return z, z.view(-1)


def detached_input_that_requires_grad_now(x):
    return x.detach().requires_grad_(), x * 2


def detached_views(x):
    return x.detach().view(-1), x.t().detach()


def view_without_grad(x):
    with torch.no_grad():
        view = x.view(-1)
    return view, x * 2


def view_of_intermediate_without_grad(x):
    z = x * 2
    with torch.no_grad():
        view = z.view(-1)
    return view, z


def gradient_that_ends_inside(x):
    return x.detach() * torch.ones(2, requires_grad=True)


def split(x):
    return x.split(1)


def one_of_several_views(x):
    return x.unbind(1)[0]


def views_of_several_views(x):
    return x.t().unbind(0)[0].view(-1), x.unbind(0)[1]


def several_views_of_intermediate(x):
    z = x * 2
    return z, *z.unbind(0)


def differentiable_and_not(x):
    return x * 2, x.argmax(), x.detach() + 1, (x > 1).float()


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, make_view):
        return make_view(x)

    @staticmethod
    def backward(ctx, gradient):
        return gradient.reshape(2, 2) * 3, None


def input_with_a_backward_of_its_own(x):
    return Scaled.apply(x, lambda x: x)


def view_with_a_backward_of_its_own(x):
    return Scaled.apply(x, lambda x: x.view(-1)), x.t()


FUNCTIONS = [
    input_with_a_backward_of_its_own,
    view_with_a_backward_of_its_own,
    view_of_input_that_requires_grad_now,
    fresh_leaf,
    leaf_and_its_view,
    detached_input_that_requires_grad_now,
    detached_views,
    view_without_grad,
    view_of_intermediate_without_grad,
    gradient_that_ends_inside,
    split,
    one_of_several_views,
    views_of_several_views,
    several_views_of_intermediate,
    differentiable_and_not,
]


def seen(function, inputs):
    """Flags of the outputs, then what writing into them and a backward do."""
    outputs = function(*inputs)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    flags = [(out.requires_grad, out.is_leaf, out._is_view(), out._base is inputs[0]) for out in outputs]
    sources = [out.sum() * (2 + i) for i, out in enumerate(outputs) if out.requires_grad]
    if sources:
        sum(sources).backward()
    gradients = [tensor.grad for tensor in (*inputs, *outputs) if tensor.is_leaf]
    return flags, [None if gradient is None else gradient.tolist() for gradient in gradients]


def written(function, inputs):
    outputs = function(*inputs)
    outcomes = []
    for out in outputs if isinstance(outputs, tuple) else (outputs,):
        try:
            out.mul_(2)
            outcomes.append("written")
        except RuntimeError as error:
            outcomes.append(str(error).partition(".")[0].replace("Scaled", "CompiledFunction"))
    return outcomes, inputs[0].tolist()


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("make", [plain, leaf, leaf_that_is_a_view, result])
@pytest.mark.parametrize("function", FUNCTIONS)
def test_outputs_are_to_autograd_what_they_are_in_eager(function, make, dynamic):
    compiled = aot_function(function, nop, dynamic=dynamic)
    assert seen(compiled, make()) == seen(function, make())
    assert written(compiled, make()) == written(function, make())


def test_a_gradient_that_ends_in_another_output_is_refused():
    def two(x):
        leaf = x.detach().requires_grad_()
        return leaf, leaf * 2

    with pytest.raises(CaptureError, match="made require grad"):
        aot_function(two, nop)(*plain())
