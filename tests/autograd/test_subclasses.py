"""Traceable wrapper subclasses: plain tensors in the graph, wrappers outside, gradients included."""

import pytest
import torch
from torch.testing._internal.two_tensor import TwoTensor

import precast
from precast.autograd import aot_function


def two(*shape):
    return TwoTensor(torch.randn(*shape), torch.randn(*shape)).requires_grad_()


def equal(left, right):
    assert type(left) is type(right)
    if isinstance(left, TwoTensor):
        return torch.equal(left.a, right.a) and torch.equal(left.b, right.b)
    return torch.equal(left, right)


def again(tensor):
    return TwoTensor(tensor.a.detach().clone(), tensor.b.detach().clone()).requires_grad_()


def program(x, y):
    z = (x * y).sin()
    return z, (y * 2).sum(), x + 1


@pytest.fixture
def graphs():
    return []


@pytest.fixture
def keep(graphs):
    def compiler(graph, _):
        graphs.append(graph)
        return graph

    return compiler


def test_outputs_and_gradients_are_wrappers_as_in_eager(keep):
    x, y = two(3, 3), torch.randn(3, 3, requires_grad=True)
    other_x, other_y = again(x), y.detach().clone().requires_grad_()
    expected, got = program(x, y), aot_function(program, keep)(other_x, other_y)
    assert all(equal(a, b) for a, b in zip(got, expected, strict=True))
    for outputs in (expected, got):
        (outputs[0].sum() + outputs[1] + outputs[2].sum()).backward()
    assert equal(other_x.grad, x.grad)
    assert equal(other_y.grad, y.grad)


def test_the_graph_holds_plain_tensors_only(keep, graphs):
    aot_function(program, keep)(two(3, 3), torch.randn(3, 3, requires_grad=True))
    forward = graphs[0]
    values = [node.meta["val"] for node in forward.graph.nodes if "val" in node.meta]
    assert not any(isinstance(value, TwoTensor) for value in values)
    assert sum(node.op == "placeholder" for node in forward.graph.nodes) == 3, (
        "two inside the wrapper, and the plain one"
    )


def test_without_gradients_too(keep):
    x, y = two(2, 2), torch.randn(2, 2)
    with torch.no_grad():
        got, expected = aot_function(program, keep)(x, y), program(x, y)
    assert all(equal(a, b) for a, b in zip(got, expected, strict=True))


def test_a_wrapper_after_a_plain_tensor_is_compiled_anew(keep, graphs):
    compiled = aot_function(lambda x: x * 2, keep)
    with torch.no_grad():
        assert type(compiled(torch.ones(2))) is torch.Tensor
        assert type(compiled(two(2))) is TwoTensor
        compiled(torch.ones(2))
    assert len(graphs) == 2


@pytest.mark.parametrize("make", [two, lambda size: torch.randn(size, requires_grad=True)])
@pytest.mark.parametrize(
    "compiled", [lambda f, keep: aot_function(f, keep), lambda f, _: precast.compile(f, fullgraph=True)]
)
def test_a_gradient_of_another_kind_does_what_it_does_in_eager(keep, make, compiled):
    tangent = torch.ones(2) if make is two else TwoTensor(torch.ones(2), torch.full((2,), 3.0))
    gradients = []
    for function in (lambda x: x.sin(), compiled(lambda x: x.sin(), keep)):
        torch.manual_seed(0)
        x = make(2)
        function(x).backward(tangent)
        gradients.append(x.grad)
    eager, ours = gradients
    assert type(ours) is type(eager) is TwoTensor
    torch.testing.assert_close((ours.a, ours.b), (eager.a, eager.b))


@pytest.mark.parametrize("compile", [aot_function, lambda f, _, dynamic: precast.compile(f, dynamic=dynamic)])
def test_wrappers_beside_dynamic_sizes(keep, compile):
    def made_and_unmade(x, y):
        assert isinstance(x, TwoTensor)
        return TwoTensor(x.a * 2, x.b) * x, x.sum(), TwoTensor(y, y * 2).sin()

    compiled = compile(made_and_unmade, keep, dynamic=True)
    for size in (3, 5):
        x, y = two(size), torch.randn(size, 2)
        for ours, eager in zip(compiled(x, y), made_and_unmade(x, y), strict=True):
            torch.testing.assert_close((ours.a, ours.b), (eager.a, eager.b))
