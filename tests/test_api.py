"""``precast.compile``: one line in, and what comes out still is the function or module it was."""

import copy
import pickle
import threading

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import precast


class Counting:
    """A compiler that counts how often it is asked."""

    def __init__(self):
        self.count = 0

    def __call__(self, graph_module, example_inputs):
        self.count += 1
        return graph_module


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Dropout(0.5), nn.Linear(4, 2))


def test_a_function_is_compiled_and_differentiable():
    compiled = precast.compile(lambda x: x.sin().sum())
    x = torch.randn(3, requires_grad=True)
    compiled(x).backward()
    assert_close(x.grad, x.detach().cos())


def test_it_works_as_a_decorator_with_and_without_arguments():
    @precast.compile
    def double(x):
        """Twice x."""
        return x * 2

    @precast.compile(backend="debug", dynamic=True)
    def triple(x):
        return x * 3

    assert double(torch.ones(2)).tolist() == [2, 2]
    assert triple(torch.ones(2)).tolist() == [3, 3]
    assert (double.__name__, double.__doc__) == ("double", "Twice x.")


def test_a_compiled_module_has_the_state_of_its_original():
    original = network()
    compiled = precast.compile(original)
    assert list(compiled.state_dict()) == list(original.state_dict())
    assert all(a is b for a, b in zip(compiled.parameters(), original.parameters(), strict=True))
    assert isinstance(compiled, nn.Sequential)
    assert compiled[0] is original[0]


def test_train_and_eval_are_variants_of_their_own():
    counting = Counting()
    compiled, eager = precast.compile(network(), backend=counting), network()
    x = torch.randn(5, 3)
    for mode in (True, False, True, False):
        compiled.train(mode)
        eager.train(mode)
        torch.manual_seed(1)
        got = compiled(x)
        torch.manual_seed(1)
        assert_close(got, eager(x))
    assert counting.count == 4, "forward and backward, in two modes"


def test_a_submodule_in_eval_is_noticed():
    compiled, eager = precast.compile(network()), network()
    x = torch.randn(5, 3)
    for model in (compiled, eager):
        model(x)
        model[1].eval()
        model[3].eval()
    assert_close(compiled(x), eager(x))


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_grad_modes_are_respected(mode):
    compiled, eager = precast.compile(network().eval()), network().eval()
    x = torch.randn(5, 3)
    compiled(x)
    with mode():
        got, expected = compiled(x), eager(x)
    assert_close(got, expected)
    assert (got.requires_grad, got.is_inference()) == (expected.requires_grad, expected.is_inference())


def test_deepcopy_gives_a_compiled_module_of_its_own():
    compiled = precast.compile(network().eval())
    copied = copy.deepcopy(compiled)
    with torch.no_grad():
        copied[0].weight.zero_()
    x = torch.randn(5, 3)
    assert_close(compiled(x), network().eval()(x))
    assert not torch.equal(copied(x), compiled(x))


def test_pickling_works_where_eagers_does():
    compiled = precast.compile(network().eval())
    x = torch.randn(5, 3)
    assert_close(pickle.loads(pickle.dumps(compiled))(x), compiled(x))


def test_to_moves_the_module_to_another_dtype():
    compiled = precast.compile(network().eval())
    compiled(torch.randn(5, 3))
    assert compiled.to(torch.float64)(torch.randn(5, 3, dtype=torch.float64)).dtype is torch.float64


def test_attributes_and_load_state_dict_reach_the_original():
    original = network().eval()
    compiled = precast.compile(original)
    compiled.note = "hello"
    assert original.note == "hello"
    other = nn.Sequential(*[copy.deepcopy(layer) for layer in network()]).eval()
    with torch.no_grad():
        other[0].weight.add_(1)
    compiled.load_state_dict(other.state_dict())
    x = torch.randn(5, 3)
    assert_close(compiled(x), other(x))


def test_hooks_on_the_compiled_module_run():
    compiled, seen = precast.compile(network().eval()), []
    compiled.register_forward_hook(lambda module, args, output: seen.append(output.shape))
    compiled(torch.randn(5, 3))
    assert seen == [(5, 2)]


def test_compiling_a_compiled_module_starts_from_the_original():
    counting = Counting()
    compiled = precast.compile(precast.compile(network().eval(), backend="debug"), backend=counting)
    compiled(torch.randn(5, 3))
    assert counting.count == 2


def test_a_size_becomes_dynamic_when_it_changes():
    counting = Counting()
    compiled = precast.compile(lambda x: x * 2, backend=counting)
    for size in (3, 4, 5, 6, 7):
        assert_close(compiled(torch.ones(size)), torch.full((size,), 2.0))
    assert counting.count == 2, "once for the first size, once for all others"


def test_threads_share_a_compiled_function():
    compiled = precast.compile(lambda x: (x @ x.T).relu().sum(), dynamic=False)
    wrong = []

    def work(size):
        for _ in range(20):
            x = torch.randn(size, 4, requires_grad=True)
            y = x.detach().clone().requires_grad_()
            compiled(x).backward()
            (y @ y.T).relu().sum().backward()
            if not torch.allclose(x.grad, y.grad):
                wrong.append(size)

    threads = [threading.Thread(target=work, args=(size,)) for size in range(2, 10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)
    assert not any(thread.is_alive() for thread in threads)
    assert wrong == []


def test_something_that_cannot_be_called_is_refused():
    with pytest.raises(TypeError, match="functions and modules"):
        precast.compile(3)


def test_a_class_is_refused_as_one():
    with pytest.raises(TypeError, match=r"precast.compile\(Linear\(…\)\)"):
        precast.compile(torch.nn.Linear)


def test_dynamic_is_yes_or_no_or_left_open():
    with pytest.raises(ValueError, match="dynamic cannot be 'batch'"):
        precast.compile(lambda x: x, dynamic="batch")


def test_an_unknown_backend_is_told_at_once():
    with pytest.raises(ValueError, match="did you mean 'nop'"):
        precast.compile(lambda x: x, backend="nopp")


def test_options_are_checked():
    with pytest.raises(ValueError, match="random"):
        precast.compile(lambda x: x, options={"random": "dice"})


def test_options_reach_a_compiler_that_takes_them():
    class Configurable(Counting, precast.Compiler):
        def with_options(self, options):
            self.options = options
            return self

    compiler = Configurable()
    precast.compile(lambda x: x, backend=compiler, options={"random": "eager"})
    assert compiler.options.random == "eager"


def test_modes_of_torch_compile_are_options():
    for mode in ("default", "reduce-overhead"):
        assert precast.compile(torch.sin, mode=mode)(torch.zeros(2)).tolist() == [0, 0]
    taken = []

    class Remembering(precast.Compiler):
        def with_options(self, options):
            taken.append(options.measure)
            return self

        def __call__(self, graph_module, example_inputs):
            return graph_module

    precast.compile(torch.sin, mode="max-autotune", backend=Remembering())
    precast.compile(mode="max-autotune", backend=Remembering())(torch.sin)
    precast.compile(torch.sin, backend=Remembering())
    assert taken == [True, True, False]
    with pytest.raises(ValueError, match="no mode 'fast'"):
        precast.compile(torch.sin, mode="fast")


def test_disable_returns_the_model_itself():
    module = torch.nn.ReLU()
    assert precast.compile(module, disable=True) is module
    assert precast.compile(disable=True)(module) is module
