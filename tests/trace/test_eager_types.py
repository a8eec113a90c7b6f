from functools import partial

import pytest
import torch
from torch.nn import functional

import precast
from precast.autograd import aot_function
from precast.compilers import nop
from precast.trace.capture import capture

aten = torch.ops.aten


def float64(*sizes: int) -> torch.Tensor:
    return torch.ones(sizes, dtype=torch.float64)


def int32(*sizes: int) -> torch.Tensor:
    return torch.zeros(sizes, dtype=torch.int32)


def raised(function, *args):
    with pytest.raises((RuntimeError, TypeError, ValueError, IndexError)) as caught:
        function(*args)
    return caught.value


REFUSED = {
    "mm": (torch.mm, float64(2, 3), torch.ones(3, 4)),
    "addmm": (torch.addmm, float64(4), torch.ones(2, 3), torch.ones(3, 4)),
    "mv": (torch.mv, torch.ones(2, 3), float64(3)),
    "bmm": (torch.bmm, torch.ones(2, 2, 3), float64(2, 3, 4)),
    "dot": (torch.dot, torch.ones(3), float64(3)),
    "linear": (functional.linear, float64(2, 3), torch.ones(4, 3)),
    "linear of whole numbers": (functional.linear, torch.ones(2, 3, dtype=torch.int64), torch.ones(4, 3)),
    "conv1d": (functional.conv1d, torch.ones(1, 2, 5), float64(3, 2, 3)),
    "conv2d's bias": (functional.conv2d, torch.ones(1, 2, 5, 5), torch.ones(3, 2, 3, 3), float64(3)),
    "depthwise": (lambda x, w: functional.conv2d(x, w, groups=96), float64(1, 96, 9, 9), torch.ones(96, 1, 3, 3)),
    "conv_transpose2d": (functional.conv_transpose2d, torch.ones(1, 2, 5, 5), float64(2, 3, 3, 3)),
    "layer_norm": (lambda x, w: functional.layer_norm(x, (4,), w), torch.ones(2, 4), float64(4)),
    "batch_norm": (functional.batch_norm, torch.ones(2, 4), float64(4), float64(4)),
    "group_norm": (lambda x, w: functional.group_norm(x, 2, w), torch.ones(2, 4, 3), float64(4)),
    "index_put": (torch.index_put, torch.ones(3), [torch.tensor([1])], float64(1)),
    "index_add": (torch.index_add, torch.ones(3), 0, torch.tensor([1]), float64(1)),
    "index_copy": (torch.index_copy, torch.ones(3), 0, torch.tensor([1]), float64(1)),
    "scatter": (torch.scatter, torch.ones(3), 0, torch.tensor([1]), float64(1)),
    "gather": (torch.gather, torch.ones(3), 0, torch.tensor([1.0])),
    "embedding": (functional.embedding, torch.ones(2), torch.ones(3, 4)),
    "cross_entropy": (functional.cross_entropy, torch.ones(2, 3), int32(2)),
    "nll_loss": (functional.nll_loss, torch.ones(2, 3), int32(2)),
    "lerp": (torch.lerp, torch.ones(3), float64(3), 0.5),
    "attention": (functional.scaled_dot_product_attention, *[torch.ones(1, 1, 2, 4)] * 2, float64(1, 1, 2, 4)),
    "grid_sample": (functional.grid_sample, torch.ones(1, 1, 3, 3), float64(1, 2, 2, 2)),
    "softmax of whole numbers": (lambda x: torch.softmax(x, 0), torch.ones(3, dtype=torch.int64)),
    "bitwise_and of fractions": (torch.bitwise_and, torch.ones(3), torch.ones(3)),
    "add_": (lambda x, y: x.add_(y), torch.ones(3, dtype=torch.int64), torch.ones(3)),
    "mul_": (lambda x, y: x.mul_(y), torch.ones(3, dtype=torch.int64), torch.ones(3)),
    "addcmul_": (lambda x, y: x.addcmul_(y, y), torch.ones(3, dtype=torch.int64), torch.ones(3)),
    "foreach": (lambda x, y: torch._foreach_add_([x], [y]), torch.ones(3, dtype=torch.int64), torch.ones(3)),
    "a number that does not fit": (
        lambda x: x.masked_fill(x > 0, 300),
        torch.ones(3, dtype=torch.uint8),
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_eager_refuses_is_refused_with_its_words(name: str):
    function, *args = REFUSED[name]
    eager = raised(function, *args)
    ours = raised(aot_function(function, nop), *args)
    assert (type(ours), str(ours)) == (type(eager), str(eager))


def test_native_code_refuses_where_the_user_called():
    def model(x, weight):
        return functional.relu(x) @ weight  # the user's line

    error = raised(precast.compile(model, fullgraph=True), float64(2, 3), torch.ones(3, 4))
    assert isinstance(error, RuntimeError)
    (note,) = error.__notes__
    assert "the user's line" in note
    assert __file__ in note


def test_export_refuses_too():
    error = raised(lambda: precast.export(torch.nn.Linear(3, 4), (float64(2, 3),)))
    assert "same dtype" in str(error)


def test_sizes_do_not_matter():
    """Nobody multiplies matrices of this size to find out."""
    left, right = torch.zeros(1, 1, dtype=torch.float64).expand(2**16, 2**16), torch.zeros(1, 1).expand(2**16, 2**16)
    assert "same dtype" in str(raised(lambda: capture(torch.mm, (left, right))))


@pytest.mark.parametrize("compiler", [partial(aot_function, fw_compiler=nop), partial(precast.compile, fullgraph=True)])
def test_gradients_that_eager_cannot_compute_are_refused(compiler):
    def loss(x, target):
        return functional.huber_loss(x, target)

    def train(function):
        function(torch.ones(3, requires_grad=True), torch.ones(3, dtype=torch.int64)).backward()

    eager, ours = raised(train, loss), raised(train, compiler(loss))
    assert (type(ours), str(ours)) == (type(eager), str(eager))


TAKEN = {
    "embedding": (functional.embedding, int32(2, 3), torch.randn(500, 16)),
    "cross_entropy": (functional.cross_entropy, torch.randn(2, 300), torch.tensor([299, 7])),
    "promotion": (lambda x, y: x * y + 2.5, torch.arange(3), float64(3)),
    "a mask and as many values": (
        lambda x, values: x.index_put([x > 1], values),
        torch.tensor([0.0, 2.0, 3.0, 1.0]),
        torch.tensor([7.0, 8.0]),
    ),
    "division of whole numbers": (torch.floor_divide, torch.arange(3), torch.arange(1, 4)),
    "powers of whole numbers": (lambda x: x**2, torch.arange(3)),
    "grouped convolution": (
        lambda x, w: functional.conv2d(x, w, groups=5),
        torch.ones(1, 15, 4, 4, dtype=torch.bfloat16),
        torch.ones(10, 3, 2, 2, dtype=torch.bfloat16),
    ),
    "boolean sum": (lambda x: x.sum(0), torch.tensor([True, False])),
    "comparison": (torch.eq, torch.arange(3), float64(3)),
}


@pytest.mark.parametrize("name", TAKEN)
def test_what_eager_takes_is_taken(name: str):
    function, *args = TAKEN[name]
    torch.testing.assert_close(aot_function(function, nop)(*args), function(*args))


def test_numbers_count_as_they_are():
    """Eager refuses negative powers of whole numbers, and takes others."""

    def power(exponent):
        return lambda x: x**exponent

    numbers = torch.arange(1, 4)
    assert str(raised(aot_function(power(-1), nop), numbers)) == str(raised(power(-1), numbers))
    torch.testing.assert_close(aot_function(power(3), nop)(numbers), numbers**3)


def test_autocast_casts_before_types_are_looked_at():
    def model(x, weight):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return functional.linear(x, weight)

    x, weight = torch.randn(2, 3, dtype=torch.bfloat16), torch.randn(4, 3)
    torch.testing.assert_close(aot_function(model, nop)(x, weight), model(x, weight))


def test_types_of_results_are_those_of_eager():
    """Where torch's fake tensors say otherwise."""

    def loss(x, target):
        return functional.huber_loss(x, target)

    def norm(x, weight):
        return torch.native_layer_norm(x, (4,), weight, weight, 1e-5)

    calls = ((loss, torch.ones(3), float64(3)), (norm, torch.ones(2, 4, dtype=torch.bfloat16), torch.ones(4)))
    for function, *args in calls:
        ours, eager = aot_function(function, nop)(*args), function(*args)
        torch.testing.assert_close(ours, eager)


def test_eager_is_asked_in_silence(recwarn):
    """No generator moves, no warning is heard, and nothing is recorded."""
    torch.manual_seed(0)
    before = torch.get_rng_state()
    graph = capture(lambda x: torch.cholesky(x.bernoulli(0.5).double()), (torch.eye(3),)).module.graph
    assert torch.equal(torch.get_rng_state(), before)
    assert not [each for each in recwarn if "deprecated" in str(each.message) and "eager_kernels" in each.filename]
    operators = [node.target for node in graph.nodes if node.op == "call_function"]
    assert operators == [aten.bernoulli.p, aten._to_copy.default, aten.cholesky.default]


def test_operators_of_others_are_not_run():
    calls = []

    @torch.library.custom_op("test_eager_types::noted", mutates_args=())
    def noted(x: torch.Tensor) -> torch.Tensor:
        calls.append(x)
        return x.clone()

    noted.register_fake(torch.empty_like)
    capture(lambda x: noted(x), (float64(3),))
    assert not calls


def test_what_eager_does_not_compute_of_nothing_is_refused():
    """Torch's fake tensors have a median of nothing."""

    def median(x):
        return x.median(0).values

    eager, ours = raised(median, torch.ones(0, 3)), raised(aot_function(median, nop), torch.ones(0, 3))
    assert (type(ours), str(ours)) == (type(eager), str(eager))
    torch.testing.assert_close(aot_function(median, nop)(torch.ones(3, 0)), median(torch.ones(3, 0)))


def test_kernels_that_crash_are_not_asked():
    """Eager reads what is not there where a table has rows, and no bag begins."""

    def bags(weight, indices, offsets):
        return functional.embedding_bag(indices, weight, offsets)

    capture(bags, (torch.ones(3, 2), torch.tensor([0, 1]), torch.zeros(0, dtype=torch.int64)))


@pytest.mark.parametrize(
    ("function", "inputs"),
    [
        (torch.matmul, (torch.ones(0, 5), torch.ones(5, 3, dtype=torch.float64))),
        (lambda x, w: functional.layer_norm(x, (3,), w), (torch.ones(0, 3), torch.ones(3).double())),
        (lambda x, i, s: x.put(i, s), (torch.ones(3), torch.zeros(0, dtype=torch.int64), torch.ones(0).double())),
        (lambda x, w: functional.group_norm(x, 1, w), (torch.ones(0, 2), torch.ones(2).double())),
        (
            lambda x: torch.autograd.grad(functional.pdist(x).sum(), x),
            (torch.ones(1, 1, dtype=torch.bfloat16).requires_grad_(),),
        ),
    ],
)
def test_types_are_refused_where_there_are_no_elements_too(function, inputs):
    for each in (function, precast.compile(function, backend="interpret", fullgraph=True)):
        with pytest.raises(RuntimeError):
            each(*inputs)


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8])
@pytest.mark.parametrize("depth", [0, 3])
def test_products_of_nothing_are_those_of_eager(dtype, depth):
    operands = torch.ones(2, depth).to(dtype), torch.ones(depth, 4).to(dtype)
    compiled = precast.compile(torch.matmul, fullgraph=True)
    if dtype is torch.bool and depth:
        assert str(raised(compiled, *operands)) == str(raised(torch.matmul, *operands))
    else:
        assert torch.equal(compiled(*operands), torch.matmul(*operands))
