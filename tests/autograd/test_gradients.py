"""What the caller's autograd graph sees: tangents, gradients, errors, and gradients of gradients."""

import copy
import gc
import weakref

import pytest
import torch
from torch.nn import functional
from torch.utils import _pytree as pytree

import precast
from precast.autograd import aot_function, aot_module
from precast.compilers import debug_nop, nop
from precast.errors import CaptureError, DataDependentError
from tests.autograd.like_eager import CompilationCount, assert_like_eager, constants, leaf


def test_integer_and_boolean_outputs_need_no_gradient():
    assert_like_eager(lambda x, y: (x.argmax(), x > y, x * y, 3, None, "word"))


def test_output_detached_inside_needs_no_gradient():
    assert_like_eager(lambda x, y: ((x * y).detach(), x + y))


def test_output_without_gradient_has_no_grad_fn():
    x = leaf(3)
    compiled = aot_function(lambda x: (x.detach() * 2, x * 2), nop)
    constant, differentiable = compiled(x)
    assert constant.grad_fn is None
    assert differentiable.grad_fn is not None


def test_no_grad_block():
    def function(x, y):
        with torch.no_grad():
            z = x * 2
        return z * y

    assert_like_eager(function)


def test_enable_grad_inside_a_call_without_gradients():
    def function(x):
        with torch.enable_grad():
            return x * 2

    x = leaf(3)
    with torch.no_grad():
        assert aot_function(function, nop)(x).requires_grad == function(x).requires_grad


def test_input_that_gets_no_gradient():
    assert_like_eager(lambda x, y: x.sin())


def test_aliased_outputs_have_no_tangent():
    count = CompilationCount()
    x = leaf(3, 3)
    aot_function(lambda x: (x.t(), x * 2), count)(x)[1].sum().backward()
    tangents = [node for node in count.graphs[1].graph.nodes if node.name.startswith("tangents")]
    assert len(tangents) == 1


def test_one_output_left_out_of_the_loss():
    x = leaf(3)
    first, _ = aot_function(lambda x: (x.sin(), x.exp()), nop)(x)
    first.sum().backward()
    assert torch.equal(x.grad, x.detach().cos())


def two_heads(x, a, b):
    return x * a, (x + b).exp()


def updating_head(x, a, b):
    a = a * 1
    a.copy_(b)
    return x * 2, a


@pytest.mark.thinned
@pytest.mark.parametrize("compiler", [nop, None], ids=["nop", "native"])
@pytest.mark.parametrize("function", [two_heads, updating_head])
@pytest.mark.parametrize("used", [0, 1])
def test_what_leads_to_results_out_of_the_loss_alone_has_no_gradient(function, used, compiler):
    compiled = aot_function(function, compiler) if compiler else precast.compile(function)
    for create_graph in (False, True):
        values = [torch.randn(3) for _ in range(3)]
        found, expected = ([value.clone().requires_grad_() for value in values] for _ in range(2))
        for run, inputs in ((compiled, found), (function, expected)):
            gradients = torch.autograd.grad(
                run(*inputs)[used].sum(), inputs, allow_unused=True, create_graph=create_graph
            )
            inputs[:] = gradients
        assert [each is None for each in found] == [each is None for each in expected]
        torch.testing.assert_close(
            [each for each in found if each is not None], [each for each in expected if each is not None]
        )


def test_an_input_that_was_written_has_no_gradient_if_nobody_reads_it():
    def program(x, y, z):
        x.copy_(z)
        return y.cumsum(0)

    leaves = [leaf(3) for _ in range(3)]
    aot_function(program, nop)(*(each * 1 for each in leaves)).sum().backward()
    assert [each.grad is None for each in leaves] == [True, False, True]


def test_an_optimizer_leaves_a_head_alone_that_is_not_trained():
    model = torch.nn.ModuleDict({"used": torch.nn.Linear(2, 2), "other": torch.nn.Linear(2, 2)})
    before = model["other"].weight.detach().clone()
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.5)
    heads = precast.compile(lambda x: [head(x) for head in model.values()], backend="nop")
    heads(torch.ones(1, 2))[0].sum().backward()
    optimizer.step()
    torch.testing.assert_close(model["other"].weight.detach(), before)


@pytest.mark.parametrize(
    "tangent",
    [torch.ones(()).expand(3, 4), torch.randn(4, 3).t(), torch.randn(3, 8)[:, ::2], torch.zeros(1).expand(3, 4)],
    ids=["zero-strided", "transposed", "strided", "broadcast"],
)
def test_tangents_in_any_memory_order(tangent):
    x = torch.randn(3, 4, requires_grad=True)
    (ours,) = torch.autograd.grad(aot_function(torch.sin, nop)(x), x, tangent)
    assert torch.equal(ours, tangent * x.detach().cos())


def test_tangent_for_a_transposed_output():
    def function(x):
        return x.sin().t().contiguous().t()

    x = torch.randn(3, 4, requires_grad=True)
    tangent = torch.randn(3, 4)
    (ours,) = torch.autograd.grad(aot_function(function, nop)(x), x, tangent)
    assert torch.equal(ours, tangent * x.detach().cos())


def test_backward_twice_is_refused_as_in_eager():
    x = leaf(3)
    loss = aot_function(lambda x: x.sin().sum(), nop)(x)
    loss.backward()
    with pytest.raises(RuntimeError, match="Trying to backward through the graph a second time"):
        loss.backward()


def test_backward_twice_with_retain_graph():
    x = leaf(3)
    loss = aot_function(lambda x: x.sin().sum(), nop)(x)
    loss.backward(retain_graph=True)
    loss.backward()
    torch.testing.assert_close(x.grad, 2 * x.detach().cos())


def test_changed_saved_tensor_is_refused_as_in_eager():
    x = leaf(3)
    y = x * 1
    z = aot_function(lambda y: y.sin(), nop)(y)
    y.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        z.sum().backward()


def test_changed_saved_output_is_refused_as_in_eager():
    x = leaf(3)
    z = aot_function(lambda x: x.exp(), nop)(x)
    z.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        z.sum().backward()


def test_output_that_is_not_saved_may_be_written_into():
    x = leaf(3)
    z = aot_function(lambda x: x.sin(), nop)(x)
    z.mul_(2)
    z.sum().backward()
    torch.testing.assert_close(x.grad, 2 * x.detach().cos())


def test_saved_tensors_are_freed_by_the_backward():
    kept = []

    def watching(module, example_inputs):
        def run(*inputs):
            results = module(*inputs)
            kept.extend(weakref.ref(result) for result in results[1:] if isinstance(result, torch.Tensor))
            return results

        return run

    x = leaf(3)
    loss = aot_function(lambda x: x.sin().exp().sum(), watching, nop)(x)
    saved = [ref() for ref in kept]
    watched = [ref for ref, value in zip(kept, saved, strict=True) if value is not x]
    del saved
    assert any(ref() is not None for ref in watched)
    loss.backward()
    gc.collect()
    assert all(ref() is None for ref in watched)


def test_gradient_of_the_gradient_is_compiled_when_first_asked_for():
    count = CompilationCount()
    x = leaf(3)
    compiled = aot_function(lambda x: (x**3).sum(), count)
    compiled(x).backward()
    assert len(count) == 2
    (first,) = torch.autograd.grad(compiled(x), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    torch.testing.assert_close(second, 6 * x.detach())
    assert len(count) == 4


def test_third_order():
    x = leaf(3)
    value = aot_function(lambda x: x.sin().sum(), nop)(x)
    for derivative in (torch.cos, lambda x: -x.sin(), lambda x: -x.cos()):
        (value,) = torch.autograd.grad(value.sum(), x, create_graph=True)
        torch.testing.assert_close(value.detach(), derivative(x.detach()))


def test_gradcheck_and_gradgradcheck():
    compiled = aot_function(lambda x, y: (x @ y).tanh() * x.exp(), nop)
    inputs = (leaf(3, 3), leaf(3, 3))
    assert torch.autograd.gradcheck(compiled, inputs)
    assert torch.autograd.gradgradcheck(compiled, inputs)


def test_gradient_penalty_trains_as_in_eager():
    def train(discriminator):
        torch.manual_seed(0)
        weight = leaf(4, 4)
        for _ in range(3):
            x = leaf(2, 4)
            (gradient,) = torch.autograd.grad(discriminator(x, weight).sum(), x, create_graph=True)
            loss = (gradient.norm(dim=1) - 1).square().mean()
            (step,) = torch.autograd.grad(loss, weight)
            weight = (weight - 0.1 * step).detach().requires_grad_()
        return weight.detach()

    def discriminator(x, weight):
        return (x @ weight).tanh().sum(1)

    torch.testing.assert_close(train(aot_function(discriminator, nop)), train(discriminator), rtol=1e-12, atol=0)


def test_changed_input_before_the_second_backward_is_refused():
    x = leaf(3)
    y = x * 1
    value = aot_function(lambda y: (y**3).sum(), nop)(y)
    y.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.grad(value, x, create_graph=True)


class Tripled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return gradient * x * 3


def test_custom_function_keeps_its_backward():
    assert_like_eager(lambda x, y: Tripled.apply(x) * y)


def test_hook_on_a_tensor_inside():
    def function(x, y):
        z = x * y
        z.register_hook(lambda gradient: gradient * 5)
        return z.sin()

    assert_like_eager(function)


def test_hook_on_an_input_outside():
    x = leaf(3)
    x.register_hook(lambda gradient: gradient * 5)
    aot_function(lambda x: x.sum(), nop)(x).backward()
    assert torch.equal(x.grad, torch.full_like(x, 5))


def test_gradient_taken_inside_the_function():
    def function(x, y):
        (gradient,) = torch.autograd.grad((x * y).sin().sum(), x, create_graph=True)
        return gradient * y

    assert_like_eager(function)


def test_complex_gradients():
    def inputs():
        x = [leaf(3, dtype=torch.complex128), leaf(3, dtype=torch.complex128)]
        return x, x

    assert_like_eager(lambda x, y: (x * y.conj()).abs().sum(), inputs)
    assert_like_eager(lambda x, y: torch.view_as_real(x * y).sin(), inputs)


@pytest.mark.parametrize(
    "function",
    [
        lambda index, weight: functional.embedding(index, weight, sparse=True).sin(),
        lambda index, weight: functional.embedding_bag(index.view(1, -1), weight, sparse=True, mode="sum"),
        lambda index, weight: functional.embedding(index, weight, sparse=True) * functional.embedding(index, weight),
        lambda index, weight: [functional.embedding(part, weight, sparse=True) for part in index.split(1)],
    ],
)
@pytest.mark.parametrize(
    "compiled", [lambda f: aot_function(f, debug_nop), lambda f: precast.compile(f, fullgraph=True)]
)
def test_gradients_are_sparse_where_eagers_are(function, compiled):
    gradients = []
    for run in (function, compiled(function)):
        torch.manual_seed(0)
        weight = leaf(5, 3)
        sum(each.sum() for each in pytree.tree_leaves(run(torch.tensor([1, 4, 1]), weight))).backward()
        gradients.append(weight.grad)
    eager, ours = gradients
    assert ours.layout is eager.layout
    torch.testing.assert_close(ours.to_dense(), eager.to_dense())


def test_compressed_sparse_tensors_with_gradients_are_refused():
    matrix, x = torch.eye(3, dtype=torch.float64).to_sparse_csr(), leaf(3, 3)
    with pytest.raises(CaptureError, match="sparse in the layout"):
        aot_function(lambda m, x: torch.sparse.sampled_addmm(m, x, x), nop)(matrix, x)
    with pytest.raises(CaptureError, match="compresses a tensor that requires grad"):
        aot_function(lambda x: x.to_sparse_csr(), nop)(x)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.sparse.sum(x.to_sparse()),
        lambda x: x.to_sparse().values() * 2,
        lambda x: x * x.to_sparse()._nnz(),
        lambda x: x * x.to_sparse().indices().shape[1],
    ],
)
def test_how_many_elements_a_sparse_tensor_has_is_no_constant(function):
    with pytest.raises(DataDependentError, match="elements of a sparse tensor"):
        precast.compile(function, backend="nop", fullgraph=True)(torch.eye(2))
    compiled = precast.compile(function, backend="nop")
    for x in (torch.tensor([[1.0, 0.0], [2.0, 3.0]], requires_grad=True), torch.eye(2, requires_grad=True)):
        assert torch.equal(*(torch.autograd.grad(call(x).sum(), x)[0] for call in (compiled, function)))


@pytest.mark.parametrize("function", [torch.Tensor.var, torch.Tensor.std], ids=["var", "std"])
@pytest.mark.parametrize("rows", [(4, 2, 1, 3), (2, 4, 1, 2)])
def test_formulas_that_divide_by_a_size_divide_by_zero_as_in_eager(function, rows):
    def spread(x):
        return function(x, 0, correction=2)

    compiled = precast.compile(spread, backend="nop", dynamic=True)
    for count in rows:
        x = torch.randn(count, 3, requires_grad=True)
        ours, eager = (torch.autograd.grad(call(x).sum(), x)[0] for call in (compiled, spread))
        torch.testing.assert_close(ours, eager, equal_nan=True)


def test_custom_operator_with_registered_autograd():
    @torch.library.custom_op("precast_tests::cube", mutates_args=())
    def cube(x: torch.Tensor) -> torch.Tensor:
        return x**3

    cube.register_fake(torch.empty_like)
    cube.register_autograd(
        lambda ctx, gradient: gradient * 3 * ctx.saved_tensors[0] ** 2,
        setup_context=lambda ctx, inputs, output: ctx.save_for_backward(inputs[0]),
    )
    assert_like_eager(lambda x, y: cube(x) * y)


def test_inference_without_gradients_compiles_one_graph():
    count = CompilationCount()
    aot_function(lambda x, y: x @ y, count)(*constants()[1])
    assert len(count) == 1


def test_inference_compiler_serves_calls_without_gradients():
    training, inference = CompilationCount(), CompilationCount()
    compiled = aot_function(torch.sin, training, inference_compiler=inference)
    compiled(leaf(3))
    with torch.no_grad():
        compiled(leaf(3))
    assert (len(training), len(inference)) == (2, 1)


def test_anomaly_mode():
    x = leaf(3)
    with pytest.warns(UserWarning, match="Anomaly"), torch.autograd.detect_anomaly():
        aot_function(lambda x: x.sin().sum(), nop)(x).backward()
    torch.testing.assert_close(x.grad, x.detach().cos())


def test_compiled_function_keeps_no_tensor_of_the_call_it_was_compiled_for():
    compiled = aot_function(lambda x, y: (x * y).sin(), nop)
    x = leaf(3) * 1
    compiled(x, leaf(3)).sum().backward()
    watched = weakref.ref(x)
    del x
    gc.collect()
    assert watched() is None


def test_written_input_is_freed_without_the_garbage_collector():
    def function(x, y):
        x.mul_(2)
        return x + y

    compiled = aot_function(function, nop)
    compiled(leaf(3) * 1, leaf(3))
    x = leaf(3) * 1
    compiled(x, leaf(3))
    watched = weakref.ref(x)
    gc.disable()
    try:
        del x
        assert watched() is None
    finally:
        gc.enable()


def test_input_with_gradient_used_under_no_grad_alone():
    def function(x, y):
        with torch.no_grad():
            return x * y

    assert_like_eager(function)


def test_second_order_updates_no_input_again():
    def function(x, total):
        total.mul_(x.mean())
        return x**3 * total

    x, total = leaf(3), torch.ones(3, dtype=torch.float64)
    value = aot_function(function, nop)(x, total)
    updated = total.detach().clone()
    first = torch.autograd.grad(value.sum(), x, create_graph=True, retain_graph=True)[0]
    assert torch.equal(total, updated)
    again = torch.autograd.grad(value.sum(), x, create_graph=True)[0]
    assert torch.equal(first, again)


def test_second_order_updates_no_buffer_again():
    norm = torch.nn.BatchNorm1d(4).double()
    expected = copy.deepcopy(norm)
    x = leaf(3, 4)
    results = []
    for module in (expected, aot_module(norm, nop)):
        (gradient,) = torch.autograd.grad(module(x).sin().sum(), x, create_graph=True)
        results.append(torch.autograd.grad(gradient.square().sum(), x)[0])
    torch.testing.assert_close(*results)
    assert int(norm.num_batches_tracked) == 1
    torch.testing.assert_close(norm.running_mean, expected.running_mean)


def test_what_is_saved_is_seen_at_the_node_of_the_result():
    compiled = aot_function(lambda x: (x.sin() * x.shape[0]).sum(0), nop, dynamic=True)
    node = compiled(leaf(3, 2)).grad_fn
    assert type(node).__name__ == "CompiledFunctionBackward"
    assert [tuple(tensor.shape) for tensor in node.saved_tensors] == [(3, 2)]
    assert set(node.symints) <= {2, 3}
