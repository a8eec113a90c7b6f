"""Whose random numbers compiled functions draw, and that computing them again gives the same ones."""

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import precast
from precast.autograd import aot_function
from precast.compilers import memory_efficient_fusion, nop
from precast.native.backend import NativeCompiler
from precast.native.random import draw_from_streams
from precast.options import Options
from tests.native.lowering.pipeline import trace


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def compiled(cache):
    def compile_(function, random="philox", **choices):
        options = Options(cache_directory=cache, random=random)
        return precast.compile(function, backend="native", options=options, **choices)

    return compile_


def noisy(x):
    return torch.nn.functional.dropout(x, 0.5) + torch.rand_like(x)


def test_torchs_seed_decides_and_calls_differ(compiled):
    function, x = compiled(noisy), torch.ones(64)
    torch.manual_seed(7)
    first, second = function(x), function(x)
    torch.manual_seed(7)
    assert torch.equal(function(x), first)
    assert torch.equal(function(x), second)
    assert not torch.equal(first, second)


def test_eager_numbers_on_request(compiled):
    def function(x):
        unused = torch.rand(3)  # noqa: F841
        return noisy(x), torch.bernoulli(x / 2), torch.randperm(9), x.clone().exponential_()

    x = torch.ones(64)
    torch.manual_seed(7)
    eager = function(x)
    torch.manual_seed(7)
    for ours, theirs in zip(compiled(function, random="eager")(x), eager, strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("random", ["philox", "eager"])
def test_gradients_see_the_mask_of_the_forward(compiled, random):
    x = torch.full((256,), 3.0, requires_grad=True)
    result = compiled(lambda x: torch.nn.functional.dropout(x, 0.25), random=random)(x)
    (gradient,) = torch.autograd.grad(result.sum(), x)
    torch.testing.assert_close(gradient * 3, result)


def checkpointed(x):
    def block(x):
        return torch.nn.functional.dropout(x, 0.5) * torch.rand_like(x) * torch.bernoulli(x / 2) / 4

    return checkpoint(block, x, use_reentrant=False).sin()


def assert_drawn_again(function):
    """The result is sin(c x) with a random c, and its gradient c cos(c x): right only if c was drawn again."""
    x = torch.ones(256, requires_grad=True)
    result = function(x)
    (gradient,) = torch.autograd.grad(result.sum(), x)
    torch.testing.assert_close(gradient, result.asin() * result.asin().cos())


@pytest.mark.parametrize("random", ["philox", "eager"])
def test_what_is_computed_again_draws_the_same(compiled, random):
    assert_drawn_again(compiled(checkpointed, random=random))


def test_a_backward_of_another_compiler_draws_the_same_again(cache):
    native = NativeCompiler(Options(cache_directory=cache))
    assert_drawn_again(aot_function(checkpointed, native, nop))
    assert_drawn_again(aot_function(checkpointed, nop, native))
    assert_drawn_again(memory_efficient_fusion(checkpointed, bw_compiler=nop))


def test_second_gradients_see_the_mask_of_the_forward(compiled):
    x = torch.full((64,), 3.0, requires_grad=True)
    result = compiled(lambda x: torch.nn.functional.dropout(x**3, 0.5))(x)
    (gradient,) = torch.autograd.grad(result.sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(gradient.sum(), x)
    assert torch.equal(second != 0, result != 0)


def test_a_dynamic_size_draws_as_many_as_there_are(compiled):
    function = compiled(lambda x: torch.rand(x.shape[0], 3) + x[:, None], dynamic=True)
    for rows in (5, 9):
        drawn = function(torch.zeros(rows))
        assert drawn.shape == (rows, 3)
        assert drawn.unique().numel() == rows * 3


def test_a_graph_without_random_operators_is_left_alone():
    module = trace(lambda x: x.exp(), [torch.ones(3)])
    assert draw_from_streams(module, "cpu") is module


def test_the_graph_given_is_not_changed():
    module = trace(noisy, [torch.ones(3)])
    before = str(module.graph)
    assert draw_from_streams(module, "cpu") is not module
    assert str(module.graph) == before
