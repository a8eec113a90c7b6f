"""The native backend as a whole: what goes in and out of compiled graphs, how graphs are split, warm starts."""

import pytest
import torch

import precast
from precast.cache import open_store
from precast.errors import BuildError
from precast.native.compiler import NativeCompiler, NativeGraph
from precast.native.targets.cpu.target import CpuTarget
from precast.options import Options


@pytest.fixture(scope="module")
def options(tmp_path_factory) -> Options:
    return Options(cache_directory=tmp_path_factory.mktemp("cache"))


@pytest.fixture
def compiled(options):
    """``compiled(function)``: the function through the native backend, and the graphs it was compiled to."""

    def compile_(function, **choices):
        return precast.compile(function, backend="native", options=options, **choices)

    return compile_


def assert_like_eager(compiled, function, *inputs):
    ours, eager = compiled(*inputs), function(*inputs)
    torch.testing.assert_close(ours, eager)
    return ours


def test_an_operator_without_a_rule_calls_back(compiled):
    def function(x):
        return torch.linalg.inv(x + 1).exp()

    assert_like_eager(compiled(function), function, torch.eye(3) * 4)


def test_complex_numbers_are_left_to_torch_and_come_back(compiled):
    def function(x):
        return torch.view_as_real(torch.view_as_complex(x.exp()).tanh()) + x

    assert_like_eager(compiled(function), function, torch.randn(5, 2))


def test_complex_inputs_and_outputs(compiled):
    def function(x):
        return x * 2, x.real.exp()

    assert_like_eager(compiled(function), function, torch.randn(4, dtype=torch.complex64))


def test_sizes_that_depend_on_data(compiled):
    def function(x):
        return torch.nonzero(x > 0) * 2 + 1

    assert_like_eager(compiled(function), function, torch.tensor([1.0, -1.0, 2.0]))


def test_an_input_returned_is_the_input(compiled):
    x = torch.ones(2)
    assert compiled(lambda x: (x, x + 1))(x)[0] is x


def test_a_view_of_an_input_shares_its_memory(compiled):
    x = torch.ones(2, 3)
    assert compiled(lambda x: (x.t(), x + 1))(x)[0].data_ptr() == x.data_ptr()


def test_two_views_of_one_result_share_memory_as_in_eager(compiled):
    def function(x):
        y = x.exp()
        return y.t(), y.reshape(-1)

    transposed, flat = assert_like_eager(compiled(function), function, torch.randn(2, 3))
    assert transposed.data_ptr() == flat.data_ptr()
    assert transposed.stride() == (1, 3)


def test_expanded_results_have_eagers_strides(compiled):
    ours = compiled(lambda x: x.exp().expand(4, 3))(torch.ones(3))
    assert ours.stride() == (0, 1)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.exp().expand(4, 3)[1:],
        lambda x: x.exp()[1:].unsqueeze(0).expand(4, 2),
        lambda x: x.exp().as_strided((2, 2), (0, 1)),
        lambda x: x.exp().as_strided((2, 2), (1, 0), 1),
    ],
)
def test_results_that_show_an_element_again_have_eagers_strides(compiled, function):
    ours = assert_like_eager(compiled(function), function, torch.randn(3))
    assert ours.stride() == function(torch.ones(3)).stride()


def test_no_tensor_goes_in(compiled):
    function = lambda: torch.arange(4) * 2  # noqa: E731
    assert_like_eager(compiled(function), function)


def test_numbers_and_nothing_come_out(compiled):
    def function(x):
        return x + 1, x.shape[0] * 2, None, "text"

    for dynamic in (False, True):
        assert compiled(function, dynamic=dynamic)(torch.ones(3))[1:] == (6, None, "text")


def test_results_that_nobody_asked_for(compiled):
    """A convolution's backward that leaves out the input's gradient gives None in its place."""
    layer = torch.nn.Conv2d(2, 3, 3)
    x = torch.randn(1, 2, 5, 5)
    expected = torch.autograd.grad(layer(x).sum(), list(layer.parameters()))
    ours = torch.autograd.grad(compiled(layer)(x).sum(), list(layer.parameters()))
    torch.testing.assert_close(ours, expected)


def test_constants_of_the_graph(compiled):
    table = torch.tensor([1.0, 2.0, 3.0])
    function = lambda x: x * table + torch.tensor([4.0, 5.0, 6.0])  # noqa: E731
    assert_like_eager(compiled(function), function, torch.ones(3))


@pytest.mark.parametrize("sizes", [(4,), (6,)])
def test_a_size_known_only_as_a_multiple(options, sizes):
    """The backward of a doubling sees tangents of size 2*s."""
    function = lambda x: torch.cat([x, x]).exp()  # noqa: E731
    ours = precast.compile(function, backend="native", options=options, dynamic=True)
    for size in (3, *sizes):
        x = torch.randn(size, requires_grad=True)
        expected = torch.autograd.grad(function(x).sum(), x)
        torch.testing.assert_close(torch.autograd.grad(ours(x).sum(), x), expected)


def test_inputs_are_given_up_when_the_call_starts(options):
    graph = torch.fx.symbolic_trace(lambda x: torch.ops.aten.exp.default(x))
    for node in graph.graph.nodes:
        node.meta["val"] = torch._subclasses.FakeTensorMode().from_tensor(torch.ones(2))
    graph.graph.output_node().args = ((graph.graph.output_node().args[0],),)
    compiled_graph = NativeCompiler(options)(graph, [])
    inputs = [torch.ones(2)]
    (result,) = compiled_graph(inputs)
    assert not inputs
    torch.testing.assert_close(result, torch.ones(2).exp())


def test_a_second_start_neither_lowers_nor_builds(compiled, options, monkeypatch):
    def function(x, y):
        return torch.linalg.inv(x @ y).exp() + y.sum(dim=0, dtype=torch.float64)

    x, y = torch.randn(3, 3) + torch.eye(3) * 9, torch.eye(3)
    for dynamic in (False, True):
        expected = compiled(function, dynamic=dynamic)(x, y)
        with monkeypatch.context() as patch:
            patch.setattr("precast.native.compiler.lower_segments", None)
            patch.setattr(CpuTarget, "start", None)
            torch.testing.assert_close(compiled(function, dynamic=dynamic)(x, y), expected)


def test_an_evicted_library_is_built_again(compiled, options):
    function = lambda x: x.exp() * 3  # noqa: E731
    compiled(function)(torch.ones(5))
    store = open_store(options)
    for path in store.directory.rglob("*.so"):
        path.unlink()
    with pytest.warns(UserWarning, match="compiled anew"):
        assert_like_eager(compiled(function), function, torch.ones(5))


def test_no_compiler_names_the_package_and_the_other_backend(tmp_path):
    options = Options(compiler="no-such-compiler", cache_directory=tmp_path)
    with pytest.raises(BuildError, match=r"g\+\+[\s\S]*interpret"):
        precast.compile(lambda x: x + 1, backend="native", options=options)(torch.ones(2))


def test_interpret_needs_no_compiler(monkeypatch):
    monkeypatch.setenv("PATH", "")
    x = torch.ones(3, requires_grad=True)
    precast.compile(lambda x: x.exp().sum(), backend="interpret")(x).backward()
    torch.testing.assert_close(x.grad, x.detach().exp())


def test_a_graph_that_does_nothing_builds_nothing(options):
    compiler = NativeCompiler(Options(compiler="no-such-compiler", cache_directory=options.cache_directory))
    graph = torch.fx.symbolic_trace(lambda x: (x,))
    next(iter(graph.graph.nodes)).meta["val"] = torch._subclasses.FakeTensorMode().from_tensor(torch.ones(2))
    compiled_graph = compiler(graph, [])
    assert isinstance(compiled_graph, NativeGraph)
    x = torch.ones(2)
    assert compiled_graph([x]) == [x]


def test_a_tensor_may_be_called_like_a_loop_variable(compiled):
    def function(i0, i1):
        return i0 * 2, torch.special.i1(i1).sum(1) + i0

    x = torch.randn(2, 3)
    assert_like_eager(compiled(function), function, x[:, 0], x)


def test_a_place_that_was_just_computed_is_not_read_before_it_is_written(compiled):
    def function(x, target, weight):
        return torch.nn.functional.cross_entropy(x, target, weight=weight)

    x, target, weight = torch.randn(2, 3, dtype=torch.bfloat16), torch.tensor([2, 0]), torch.rand(3).bfloat16()
    ours, eager = compiled(function)(x.requires_grad_(), target, weight), function(x, target, weight)
    torch.testing.assert_close(ours, eager, rtol=0.05, atol=0.01)


@pytest.mark.parametrize(
    "function",
    [
        lambda x, start: torch.narrow(x, 1, start, 2),
        lambda x, start: torch.narrow(x, 1, start, 2) * 2,
        lambda x, start: torch.narrow(x * 2, 1, start, 2).sum(1),
    ],
    ids=["a view", "a view that is read", "a view of what is computed"],
)
def test_a_view_may_begin_where_a_tensor_says(compiled, function):
    x, ours = torch.randn(3, 6), compiled(function)
    for start in (torch.tensor(1), torch.tensor(4), torch.tensor(-2)):
        assert torch.equal(ours(x, start), function(x, start))


def test_a_size_that_a_guard_makes_one_is_broadcast():
    def function(x):
        larger, smaller = x.chunk(2)
        return larger * smaller.sigmoid()

    compiled = precast.compile(function, dynamic=True)
    for rows in (3, 2, 4):
        x = torch.randn(rows, 5)
        torch.testing.assert_close(compiled(x), function(x))
