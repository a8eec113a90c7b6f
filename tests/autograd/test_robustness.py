"""Threads, failures, and compiled functions inside of compiled functions."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

from precast.autograd import aot_function, aot_module
from precast.compilers import nop
from precast.errors import DataDependentError
from tests.autograd.like_eager import CompilationCount, assert_like_eager, leaf

THREADS = 8


def program(x, y):
    return (x @ y).tanh().sum()


def in_threads(work):
    """Start all at once; give the results, or raise the first error."""
    barrier = threading.Barrier(THREADS)

    def run(number):
        barrier.wait()
        return work(number)

    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(run, range(THREADS), timeout=120))


@pytest.mark.parametrize("dynamic", [False, True])
def test_threads_with_different_sizes(dynamic):
    compiled = aot_function(program, nop, dynamic=dynamic)

    def work(number):
        generator = torch.Generator().manual_seed(number)
        for size in (number + 2, 5, number + 3):
            x = torch.randn(size, 4, generator=generator).requires_grad_()
            y = torch.randn(4, size, generator=generator).requires_grad_()
            ours = torch.autograd.grad(compiled(x, y), [x, y])
            eager = torch.autograd.grad(program(x, y), [x, y])
            if not all(map(torch.equal, ours, eager)):
                return False
        return True

    assert all(in_threads(work))


def test_threads_with_one_size_compile_once():
    count = CompilationCount()
    compiled = aot_function(program, count)
    x, y = leaf(3, 4), leaf(4, 3)
    results = in_threads(lambda _: compiled(x, y).detach())
    assert all(torch.equal(result, program(x, y)) for result in results)
    assert len(count) == 2


def test_threads_and_second_order():
    compiled = aot_function(lambda x: (x**3).sum(), nop)

    def work(number):
        x = leaf(number % 3 + 2)
        (first,) = torch.autograd.grad(compiled(x), x, create_graph=True)
        (second,) = torch.autograd.grad(first.sum(), x)
        return torch.allclose(second, 6 * x.detach())

    assert all(in_threads(work))


def test_threads_with_different_functions_and_modes():
    functions = [aot_function(lambda x, n=n: (x * n).sin(), nop) for n in range(THREADS)]

    def work(number):
        with torch.set_grad_enabled(number % 2 == 0), torch.autocast("cpu", enabled=number % 3 == 0):
            x = leaf(3)
            result = functions[number](x)
        return torch.equal(result, (x * number).sin()) and result.requires_grad == (number % 2 == 0)

    assert all(in_threads(work))


def test_threads_share_a_module():
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    compiled = aot_module(module, nop)

    def work(number):
        x = torch.randn(number + 2, 4)
        return torch.equal(compiled(x), module(x))

    assert all(in_threads(work))


class BrokenError(Exception):
    """What fails in these tests."""


def assert_all_is_well():
    assert torch.is_grad_enabled()
    assert not torch.compiler.is_compiling()
    assert torch.is_tensor(torch.ones(3) + 1)
    assert_like_eager(lambda x, y: (x @ y).tanh())


def test_failure_in_user_code():
    fails = True

    def function(x):
        with torch.no_grad():
            y = x * 2
            if fails:
                raise BrokenError
        return y + x

    compiled = aot_function(function, nop)
    torch.manual_seed(3)
    state = torch.get_rng_state()
    with pytest.raises(BrokenError):
        compiled(leaf(3))
    assert_all_is_well()
    fails = False
    x = leaf(3)
    assert torch.equal(compiled(x), function(x))
    torch.manual_seed(3)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("failing", ["forward", "backward"])
def test_failure_in_a_compiler(failing):
    fails = {"forward": False, "backward": False, failing: True}

    def compiler(kind):
        def compile_graph(module, example_inputs):
            if fails[kind]:
                raise BrokenError
            return module

        return compile_graph

    compiled = aot_function(program, compiler("forward"), compiler("backward"))
    x, y = leaf(3, 4), leaf(4, 3)
    with pytest.raises(BrokenError):
        compiled(x, y).backward()
    assert_all_is_well()
    fails[failing] = False
    compiled(x, y).backward()
    assert torch.equal(compiled(x, y), program(x, y))


def test_failure_in_compiled_code_leaves_inputs_as_they_were():
    def compiler(module, example_inputs):
        def run(*inputs):
            raise BrokenError

        return run

    x = torch.ones(3)
    with pytest.raises(BrokenError):
        aot_function(lambda x: x.add_(1), compiler)(x)
    assert torch.equal(x, torch.ones(3))
    assert_all_is_well()


def test_failure_in_a_compiled_backward():
    def compiler(module, example_inputs):
        def run(*inputs):
            raise BrokenError

        return run

    x = leaf(3)
    loss = aot_function(lambda x: x.sin().sum(), nop, compiler)(x)
    with pytest.raises(BrokenError):
        loss.backward()
    assert x.grad is None
    assert_all_is_well()


def test_failure_in_one_thread_leaves_the_others_alone():
    def function(x):
        if x.shape[0] == 3:
            raise BrokenError
        return x.sin()

    compiled = aot_function(function, nop)

    def work(number):
        x = torch.ones(number + 1)
        try:
            return torch.equal(compiled(x), x.sin())
        except BrokenError:
            return number == 2

    assert all(in_threads(work))


def test_compiled_function_inside_of_a_compiled_function():
    inner = aot_function(lambda x, y: (x * y).sin(), nop)
    assert_like_eager(lambda x, y: inner(x, y) * 2 + inner(y, x))


def test_compiled_module_inside_of_a_module():
    torch.manual_seed(0)
    inner = nn.Linear(4, 4)
    compiled = aot_module(nn.Sequential(aot_module(inner, nop), nn.Tanh()), nop)
    x = torch.randn(2, 4)
    assert torch.equal(compiled(x), inner(x).tanh())
    compiled(x).sum().backward()
    assert inner.weight.grad is not None


class Branching(torch.autograd.Function):
    """Doubles; its gradient depends on what was doubled."""

    @staticmethod
    def forward(context, x):
        context.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(context, gradient):
        (x,) = context.saved_tensors
        return gradient if x.sum() > 0 else -gradient


def test_backward_that_branches_on_data_is_told_by_its_line():
    with pytest.raises(DataDependentError) as failure:
        aot_function(Branching.apply, nop)(leaf(3))
    assert "x.sum() > 0" in failure.value.at
