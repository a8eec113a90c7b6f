"""What can be compiled, and what of it stays: methods, partials, wrapped forwards, signatures, names, transforms."""

import functools
import inspect
import types

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

import precast
from precast._torch_compat import named_source
from precast.autograd import aot_function, aot_module, aot_module_simplified
from precast.compilers import nop
from tests.autograd.like_eager import CompilationCount

X = torch.linspace(-1, 1, 8).reshape(2, 4)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.scale = 2.0

    def forward(self, ids, *, mask=None, labels: int = 3):
        """Scaled."""
        return self.linear(ids) * self.scale

    def twice(self, x):
        return self(self(x))


class Decorated(nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.scale = scale

    @precast.compile(backend="nop")
    def forward(self, x, *, shift=0.0):
        return self.linear(x) * self.scale + shift


def test_a_forward_that_is_compiled_in_its_class():
    first, second = Decorated(2.0), Decorated(3.0)
    for module in (first, second, first):
        expected = module.linear(X) * module.scale + 1.0
        assert torch.equal(module(X, shift=1.0), expected)
    first.scale = 5.0
    assert torch.equal(first(X), first.linear(X) * 5.0)
    first(X).sum().backward()
    assert first.linear.weight.grad is not None
    assert list(inspect.signature(first.forward).parameters) == ["x", "shift"]
    assert len(precast.variants(Decorated.forward)) >= 3


def test_a_function_of_a_module_and_a_tensor():
    compiled = aot_function(lambda model, x: model(x) + 1, nop)
    module = Net()
    assert torch.equal(compiled(module, X), module(X) + 1)
    module.scale = 7.0
    assert torch.equal(compiled(module, X), module(X) + 1)


def test_bound_methods_of_modules_and_of_other_objects():
    module = Net()
    assert torch.equal(precast.compile(module.twice, backend="nop")(X), module.twice(X))

    class Holder:
        def __init__(self):
            self.module, self.shift = Net(), 1.0

        def run(self, x):
            return self.module(x) + self.shift

    holder = Holder()
    compiled = precast.compile(holder.run, backend="nop")
    assert torch.equal(compiled(X), holder.run(X))
    holder.shift, holder.module = 3.0, Net()
    assert torch.equal(compiled(X), holder.run(X))


def test_partials():
    module = Net()
    compiled = precast.compile(functools.partial(lambda m, x, *, power: m(x) ** power, module, power=2), backend="nop")
    assert torch.equal(compiled(X), module(X) ** 2)
    module.scale = 5.0
    assert torch.equal(compiled(X), module(X) ** 2)


def test_a_compiled_module_keeps_its_signature_and_its_name():
    module = Net()
    compiled = precast.compile(module, backend="nop")
    assert inspect.signature(compiled.forward) == inspect.signature(module.forward)
    assert compiled.forward.__doc__ == "Scaled."
    assert type(compiled).__name__ == compiled.__class__.__qualname__ == "Net"
    assert isinstance(compiled, Net)
    assert inspect.signature(precast.compile(module.twice, backend="nop")) == inspect.signature(module.twice)


def test_who_replaces_the_forward_wraps_the_compiled_one():
    module = Net()
    compiled = aot_module(module, nop)
    compiled._original_forward = compiled.forward
    original = compiled.forward.__func__

    @functools.wraps(original)
    def in_double(self, *args, **kwargs):
        return original(self, *args, **kwargs).double()

    compiled.forward = types.MethodType(in_double, compiled)
    assert torch.equal(compiled(X), module(X).double())
    assert torch.equal(module(X), compiled(X).float())
    assert "forward" not in vars(module)
    assert inspect.signature(compiled.forward) == inspect.signature(module.forward)
    del compiled.forward
    assert compiled(X).dtype is torch.float32
    assert len(precast.variants(compiled)) == 1


@pytest.mark.parametrize(
    "transform",
    [
        lambda f: torch.func.vmap(f)(X),
        lambda f: torch.func.grad(lambda x: f(x).sum())(X[0]),
        lambda f: torch.func.jacrev(f)(X[0]),
        lambda f: torch.func.jacfwd(f)(X[0]),
        lambda f: torch.func.vmap(torch.func.grad(lambda x: f(x).sum()))(X),
        lambda f: torch.func.hessian(lambda x: f(x).sum())(X[0]),
        lambda f: torch.func.jvp(f, (X[0],), (X[1],))[1],
    ],
)
def test_transforms_of_functions_over_compiled_ones(transform):
    def function(x):
        return x.sin() * x.sum()

    assert torch.equal(transform(aot_function(function, nop)), transform(function))


def test_fake_inputs_are_compiled_for_at_once_and_their_symbols_are_dynamic():
    linear = torch.nn.Linear(3, 2)
    sizes = StatelessSymbolicContext(dynamic_sizes=[DimDynamic.DYNAMIC, DimDynamic.STATIC])
    mode = FakeTensorMode(shape_env=ShapeEnv())
    fake = mode.from_tensor(torch.randn(4, 3), source=named_source("x"), symbolic_context=sizes)
    count = CompilationCount()
    compiled = aot_module_simplified(linear, [fake], count)
    assert len(count.graphs) == 2
    for size in (4, 7):
        x = torch.randn(size, 3)
        torch.testing.assert_close(compiled(x), linear(x))
    assert len(count.graphs) == 2


class _Doubling(nn.Linear):
    def __call__(self, *args):
        return super().__call__(*args) * 2


def test_a_module_with_a_call_of_its_own_is_called_once():
    module, x = _Doubling(2, 2), torch.ones(1, 2)
    assert torch.equal(precast.compile(module, backend="nop")(x), module(x))
    broken = precast.compile(lambda x: module(x) if x.sum() > 0 else x, backend="nop")
    with pytest.warns(precast.GraphBreakWarning):
        assert torch.equal(broken(x), module(x))
