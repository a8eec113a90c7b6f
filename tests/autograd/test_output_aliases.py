"""Outputs that alias inputs, intermediates or each other are real aliases, as in eager."""

import pytest
import torch

import precast
from precast.autograd import aot_function
from precast.compilers import nop
from tests.autograd.like_eager import (
    CompilationCount,
    assert_like_eager,
    constants,
    leaf,
    leaves,
    results_of_leaves,
)

MAKES = pytest.mark.parametrize("make", [leaves, results_of_leaves, constants])
SIZES = pytest.mark.parametrize("dynamic", [False, True])


def inputs_themselves(x, y):
    return y, x, x


def views_of_inputs(x, y):
    return x.t(), y[0], x.view(-1)[2:5], y.unsqueeze(0).expand(2, 3, 3)


def input_and_its_view(x, y):
    return x, x[1], y * 2


def view_of_view(x, y):
    return x.t()[1][None], (x * y).sum()


def detached_input(x, y):
    return x.detach(), x * y


def detached_part_of_input(x, y):
    return x.detach()[7 % x.shape[0] :], x * y


def unbound_input(x, y):
    return x.unbind(0)


def real_and_imaginary(x, y):
    z = torch.complex(x, y)
    return z.real, z.imag


def intermediate_and_view(x, y):
    z = x * y
    return z.view(-1), z[0], z


def views_of_intermediate(x, y):
    z = x * y
    return z.view(-1), z[0]


def single_view_of_intermediate(x, y):
    return (x * y).t()


def view_of_intermediate_detached_first(x, y):
    z = (x * y).t()
    return z.detach(), z[0].detach(), z


def intermediate_detached(x, y):
    z = x * y
    return z, z.detach()


def intermediate_twice(x, y):
    z = x * y
    return z, z


def unbound_intermediate(x, y):
    return list((x * y).unbind(0))


def split_intermediate(x, y):
    return (x * y).split(2)


def view_written_before_returned(x, y):
    z = x * y
    v = z[0]
    v.mul_(2)
    return z, v


def written_after_view(x, y):
    z = x * y
    v = z.t()
    z.mul_(2)
    return z, v


def two_bases(x, y):
    z, w = x * y, x + y
    return z.t(), w.t(), z[0], w[1]


FUNCTIONS = [
    inputs_themselves,
    views_of_inputs,
    input_and_its_view,
    view_of_view,
    detached_input,
    detached_part_of_input,
    unbound_input,
    real_and_imaginary,
    intermediate_and_view,
    views_of_intermediate,
    single_view_of_intermediate,
    intermediate_detached,
    intermediate_twice,
    unbound_intermediate,
    split_intermediate,
    view_written_before_returned,
    written_after_view,
    two_bases,
]


@pytest.mark.thinned
@SIZES
@MAKES
@pytest.mark.parametrize("function", FUNCTIONS)
def test_aliases_are_those_of_eager(function, make, dynamic):
    assert_like_eager(function, make, dynamic=dynamic)


@pytest.mark.thinned
@MAKES
@pytest.mark.parametrize("function", FUNCTIONS)
def test_outputs_can_be_written_into_as_in_eager(function, make):
    """Writing into any output either works with the same consequences, or is refused by the same error."""
    for position in range(len(_outputs(function, make))):
        eager = _written_output(function, make, position)
        ours = _written_output(aot_function(function, nop), make, position)
        if isinstance(eager, str):
            assert ours == eager, position
        else:
            torch.testing.assert_close(ours, eager, rtol=1e-12, atol=1e-13)


def _written_output(run, make, position):
    """Everything that the caller sees after writing into one output; the error's first words if that is refused."""
    torch.manual_seed(1)
    origins, args = make()
    outputs = _as_tuple(run(*args))
    try:
        outputs[position].mul_(3)
        sources = [value for value in (*outputs, *args) if value.requires_grad]
        wanted = [value for value in origins if value.requires_grad]
        gradients = torch.autograd.grad([t.sin().sum() for t in sources], wanted) if sources else ()
    except RuntimeError as error:
        return str(error)[:60]
    return [value.detach() for value in (*args, *outputs, *gradients)]


def _outputs(function, make):
    return _as_tuple(function(*make()[1]))


def _as_tuple(outputs):
    return outputs if isinstance(outputs, (tuple, list)) else (outputs,)


def test_output_that_is_an_input_is_that_object():
    x, y = leaf(3), leaf(3)
    results = aot_function(inputs_themselves, nop)(x, y)
    assert results[0] is y
    assert results[1] is x
    assert results[2] is x


def test_view_of_an_input_has_it_as_its_base():
    x = torch.ones(3, 3)
    view = aot_function(lambda x: x.t(), nop)(x)
    assert view._base is x
    view.mul_(2)
    assert torch.equal(x, torch.full((3, 3), 2.0))


def test_view_of_a_view_has_the_first_base():
    base = torch.ones(3, 3)
    view = aot_function(lambda x: x[0], nop)(base.t())
    assert view._base is base


def test_gradient_through_a_written_view_of_an_input():
    def run(function):
        torch.manual_seed(0)
        x = leaf(3, 3)
        y = x * 1
        view = function(y)
        view.mul_(2)
        y.sin().sum().backward()
        return x.grad

    assert torch.equal(run(aot_function(lambda y: y[0], nop)), run(lambda y: y[0]))


def test_lone_view_of_an_intermediate_needs_no_base_output():
    count = CompilationCount()
    aot_function(single_view_of_intermediate, count)(leaf(3, 3), leaf(3, 3))
    forward = count.graphs[0]
    assert [node.name for node in forward.graph.output_node().args[0][:1]] == ["t"]


def test_base_of_returned_views_is_one_extra_output_with_the_gradient():
    count = CompilationCount()
    x, y = leaf(3, 3), leaf(3, 3)
    first, second = aot_function(views_of_intermediate, count)(x, y)
    (first.sum() + second.sum()).backward()
    names = [node.name for node in count.graphs[0].graph.output_node().args[0]]
    assert names[2] == "mul"
    tangents = [node for node in count.graphs[1].graph.nodes if node.name.startswith("tangents_")]
    assert [tuple(node.meta["val"].shape) for node in tangents] == [(3, 3)]


def test_output_of_a_custom_function_that_returns_its_input_keeps_its_backward():
    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.view_as(x)

        @staticmethod
        def backward(ctx, gradient):
            return gradient * 5

    x = leaf(3)
    aot_function(lambda x: Scaled.apply(x), nop)(x).sum().backward()
    assert torch.equal(x.grad, torch.full_like(x, 5))


def test_empty_outputs_are_not_taken_for_aliases():
    def function(x, y):
        return x.new_zeros(0), (x * y)[:0], x[:0]

    assert_like_eager(function)


def test_as_strided_output():
    assert_like_eager(lambda x, y: (x.as_strided((2, 2), (3, 1), 1), y * 2))


def test_set_and_return_alias_of_written_input():
    def function(x, y):
        x.add_(y)
        return x.view(-1), x

    assert_like_eager(function, results_of_leaves)
    assert_like_eager(function, constants)


def test_metadata_changed_input_and_a_view_of_it():
    def function(x, y):
        view = x[0]
        x.t_()
        return view, x[1], y

    assert_like_eager(function, results_of_leaves)
    assert_like_eager(function, constants)


def written_alias_of_an_input(x, y):
    alias = x.detach()
    alias.mul_(y)
    return (alias,)


def written_alias_of_an_intermediate(x, y):
    z = x * y
    alias = z.detach()
    alias.mul_(x)
    return z, alias, alias[0]


@pytest.mark.parametrize("function", [written_alias_of_an_input, written_alias_of_an_intermediate])
def test_detached_alias_that_was_written_into_has_its_own_gradient(function):
    results = []
    for run in (function, aot_function(function, nop)):
        torch.manual_seed(1)
        origins, args = results_of_leaves()
        outputs = run(*args)
        sources = [output.sin().sum() for output in outputs]
        gradients = [torch.autograd.grad(s, origins, retain_graph=True, materialize_grads=True) for s in sources]
        results.append([*outputs, *args, *(g for found in gradients for g in found)])
    torch.testing.assert_close(results[1], results[0])


@pytest.mark.parametrize("compiler", [nop, "native"])
def test_callers_may_write_into_results_that_are_views_inside(compiler):
    def function(x, y):
        return (x @ y).view(-1).unsqueeze(0), (x * y).t()

    results = []
    for run in (function, precast.compile(function, backend=compiler)):
        torch.manual_seed(1)
        origins, args = results_of_leaves()
        outputs = run(*args)
        for output in outputs:
            output.mul_(2)
            output[..., 0] = 0
        gradients = torch.autograd.grad(sum(output.sin().sum() for output in outputs), origins)
        results.append([*outputs, *gradients])
    torch.testing.assert_close(results[1], results[0])


@pytest.mark.parametrize("freeze", [False, True])
def test_callers_may_write_into_results_that_do_not_depend_on_inputs(freeze):
    weight = torch.nn.Parameter(torch.ones(2), requires_grad=False)
    model = torch.nn.Module()
    model.weight = weight
    model.forward = lambda x: (x + 1, torch.tensor([1.0, 2.0]), weight * 2, torch.tensor([3.0, 4.0]).view(1, 2))
    compiled = precast.compile(model, options={"freeze": freeze})
    for _ in range(2):
        found = compiled(torch.ones(2))
        torch.testing.assert_close(found, model.forward(torch.ones(2)))
        for result in found:
            result.add_(5)
