"""Hooks on modules and tensors: eager's calls, in eager's order, with real tensors."""

import threading
import warnings
from contextvars import ContextVar
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn.modules import module as module_hooks
from torch.nn.utils import prune, spectral_norm

import precast
from precast.compilers import nop
from precast.errors import CaptureError
from precast.trace.exchanged_attributes import ExchangedAttribute
from precast.trace.graph_breaks import hook_effect


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x, scale=1.0):
        return torch.relu(self.second(torch.tanh(self.first(x)))) * scale + x


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.lower, self.upper, self.head = Block(), Block(), nn.Linear(4, 2)

    def forward(self, x):
        return self.head(self.upper(self.lower(x) * 2, scale=0.5))


def forward(log, name):
    return lambda module, args, output: log.append((name, type(module).__name__, output.sum().item()))


def backward(log, name):
    def hook(module, grad_input, grad_output):
        log.append((name, type(module).__name__, grad_input[0] is None, grad_output[0].sum().item()))

    return hook


class Meter:
    """A hook with state of its own."""

    def __init__(self, log):
        self.log, self.calls = log, 0

    def __call__(self, module, args, output):
        self.calls += 1
        self.log.append((self.calls, output.mean().item()))


REGISTER = {
    "forward": lambda f, m, log: [m.lower.first.register_forward_hook(forward(log, "linear"))],
    "on the compiled module": lambda f, m, log: [f.register_forward_hook(forward(log, "compiled"))],
    "before": lambda f, m, log: [m.upper.register_forward_pre_hook(lambda _, args: log.append(args[0].sum().item()))],
    "in order": lambda f, m, log: [
        f.register_forward_hook(forward(log, "compiled")),
        m.register_forward_hook(forward(log, "original")),
        m.upper.register_forward_hook(forward(log, "upper")),
        f.register_forward_pre_hook(lambda *_: log.append("second")),
        m.register_forward_pre_hook(lambda *_: log.append("first"), prepend=True),
    ],
    "changing results": lambda f, m, log: [
        m.lower.register_forward_hook(lambda _, args, output: output * 2),
        m.upper.register_forward_hook(lambda _, args, output: print(end="") or output * 3),
        m.upper.register_forward_pre_hook(lambda _, args: (args[0] + 1, *args[1:])),
    ],
    "backward": lambda f, m, log: [
        m.lower.first.register_full_backward_hook(backward(log, "linear")),
        m.upper.register_full_backward_hook(backward(log, "upper")),
        f.register_full_backward_hook(backward(log, "compiled")),
        f.register_full_backward_pre_hook(lambda _, grads: log.append(grads[0].sum().item())),
    ],
    "changing gradients": lambda f, m, log: [
        m.lower.register_full_backward_hook(lambda _, inputs, outputs: (inputs[0] * 2,)),
        m.upper.register_full_backward_pre_hook(lambda _, outputs: (outputs[0] * 3,)),
    ],
    "with keywords": lambda f, m, log: [
        m.upper.register_forward_hook(lambda _, args, kw, y: log.append((list(kw), y.mean().item())), with_kwargs=True),
        m.upper.register_forward_pre_hook(lambda _, args, kw: (args, kw | {"scale": 3.0}), with_kwargs=True),
    ],
    "always": lambda f, m, log: [m.lower.register_forward_hook(forward(log, "lower"), always_call=True)],
    "of all modules": lambda f, m, log: [
        module_hooks.register_module_forward_hook(forward(log, "any")),
        module_hooks.register_module_forward_pre_hook(lambda module, args: log.append(type(module).__name__)),
    ],
    "of all modules in the backward": lambda f, m, log: [
        module_hooks.register_module_full_backward_hook(backward(log, "any"))
    ],
    "of parameters": lambda f, m, log: [
        m.head.weight.register_hook(lambda gradient: log.append(gradient.sum().item())),
        m.head.bias.register_post_accumulate_grad_hook(lambda bias: log.append(bias.grad.sum().item())),
    ],
    "keeping outputs": lambda f, m, log: [m.lower.register_forward_hook(lambda _, args, output: log.append(output))],
    "with state": lambda f, m, log: [m.lower.register_forward_hook(Meter(log))],
    "deciding on values": lambda f, m, log: [
        m.lower.register_forward_hook(lambda _, args, output: output * 2 if output.sum() > 0 else output * 3)
    ],
    "on torch's leaves": lambda f, m, log: [
        each.register_forward_hook(forward(log, "leaf")) for each in m.modules() if isinstance(each, nn.Linear)
    ],
}  # fmt: skip


def plain(value):
    return value.tolist() if isinstance(value, torch.Tensor) else value


def trained(register, *, is_compiled, is_late, backend):
    torch.manual_seed(0)
    module, log, x = Net(), [], torch.randn(3, 4, requires_grad=True)
    called = precast.compile(module, backend=backend) if is_compiled else module
    if is_late:
        called(x).sum().backward()
    handles, results = register(called, module, log), []
    for step in range(3):
        if step == 2:
            for handle in handles:
                handle.remove()
        result = called(x)
        log.append("between")
        result.sum().backward()
        results.append(result.detach())
    assert not any(type(each) is not torch.Tensor for each in log if isinstance(each, torch.Tensor))
    return log, [*results, x.grad, *(parameter.grad for parameter in module.parameters())]


@pytest.mark.thinned
@pytest.mark.parametrize("is_late", [False, True])
@pytest.mark.parametrize("name", REGISTER)
def test_hooks_are_called_as_in_eager(name, is_late):
    run = partial(trained, REGISTER[name], is_late=is_late, backend="nop")
    (their_log, theirs), (our_log, ours) = run(is_compiled=False), run(is_compiled=True)
    assert list(map(plain, our_log)) == list(map(plain, their_log))
    for left, right in zip(ours, theirs, strict=True):
        assert torch.equal(left, right)


def test_hooks_of_native_code():
    run = partial(trained, REGISTER["in order"], is_late=True, backend="native")
    (their_log, theirs), (our_log, ours) = run(is_compiled=False), run(is_compiled=True)
    assert [each[:2] for each in our_log] == [each[:2] for each in their_log]
    for left, right in zip(ours, theirs, strict=True):
        assert torch.allclose(left, right, 1e-4, 1e-5)


def test_what_has_no_hooks_is_compiled_around_one():
    module = Net()
    module.lower.register_forward_hook(lambda _, args, output: print(output.tolist(), end=""))
    compiled = precast.compile(module, backend="nop")
    compiled(torch.ones(2, 4))
    reasons = [variant.reason for variant in precast.variants(compiled)]
    assert reasons[0] == "the first call; in pieces, since a hook of Block cannot be captured: it uses tolist"
    # The upper block, and the forward below the hook.
    assert reasons.count("the first call") == 2
    assert "forward" not in vars(module.lower)
    assert not any("_compiled_call_impl" in vars(each) for each in module.modules())


def test_a_hook_that_only_computes_is_captured():
    module, scale = Net(), 3.0
    module.lower.register_forward_hook(lambda _, args, output: torch.relu(output) * scale + args[0].mean())
    compiled = precast.compile(module, backend="nop")
    assert torch.allclose(compiled(torch.ones(2, 4)), module(torch.ones(2, 4)))
    assert len(precast.variants(compiled)) == 1


class Collector:
    """As libraries have one to collect hidden states: hooks only read it."""

    def __init__(self):
        self.found = ContextVar("found", default=None)

    def get(self):
        return self.found.get()

    def start(self):
        print(end="")
        self.is_started = True
        return self.found.set([])


def test_what_a_hook_does_not_call_is_no_effect_of_it():
    collector = Collector()

    class Collecting(Net):
        def forward(self, x):
            return super().forward(x), list(collector.get())

    module = Collecting()
    module.lower.register_forward_hook(lambda _, args, output: collector.get().append(output))
    collector.start()
    compiled = precast.compile(module, backend="nop", fullgraph=True)
    expected, collected = module(torch.ones(2, 4))
    collector.get().clear()
    result, found = compiled(torch.ones(2, 4))
    assert torch.equal(result, expected)
    assert torch.equal(found[0], collected[0])


def test_one_graph_cannot_have_such_hooks():
    module = Net()
    module.lower.register_forward_hook(lambda _, args, output: print(output.tolist(), end=""))
    for compiled in (precast.compile(module, backend="nop", fullgraph=True), precast.aot_module(module, nop)):
        with pytest.raises(CaptureError, match="a hook of Block cannot be captured: it uses tolist"):
            compiled(torch.ones(2, 4))


def test_pieces_of_other_sizes():
    module, log = Net(), []
    module.lower.register_forward_hook(forward(log, "lower"))
    compiled = precast.compile(module, backend="nop")
    for rows in (2, 5, 7):
        assert torch.allclose(compiled(torch.ones(rows, 4)), module(torch.ones(rows, 4)))
    assert len(log) == 6


class Registering(nn.Module):
    def __init__(self, register):
        super().__init__()
        self.linear, self.block, self.register = nn.Linear(4, 4), Block(), register

    def forward(self, x):
        hidden = self.linear(x)
        self.register(hidden)
        return self.block(hidden.sin())


def gradients_of_registering(register, *, is_compiled):
    torch.manual_seed(0)
    module, log = Registering(lambda hidden: register(hidden, log)), []
    called = precast.compile(module, backend="nop") if is_compiled else module
    for _ in range(2):
        called(torch.ones(2, 4)).sum().backward()
    log = [each.grad if isinstance(each, torch.Tensor) and each.retains_grad else each for each in log]
    return list(map(plain, log)), [parameter.grad for parameter in module.parameters()], called


@pytest.mark.parametrize(
    ("register", "variants"),
    [
        (lambda hidden, log: hidden.register_hook(lambda gradient: gradient * 5), 1),
        (lambda hidden, log: hidden.register_hook(lambda gradient: log.append(gradient)), 2),
        (lambda hidden, log: hidden.register_hook(lambda gradient: log.append(gradient.norm().item())), 2),
        (lambda hidden, log: hidden.register_hook(lambda gradient: gradient * 2 if gradient.sum() > 0 else None), 2),
        (lambda hidden, log: (hidden.retain_grad(), log.append(hidden)), 2),
    ],
)
def test_hooks_that_a_program_puts_on_tensors(register, variants):
    (their_log, theirs, _), (our_log, ours, compiled) = (
        gradients_of_registering(register, is_compiled=is_compiled) for is_compiled in (False, True)
    )
    assert our_log == their_log
    for left, right in zip(ours, theirs, strict=True):
        assert torch.equal(left, right)
    assert len(precast.variants(compiled)) == variants


def test_hooks_that_a_program_puts_on_its_parameters_stay_there():
    log = []

    def function(x):
        linear.weight.register_hook(lambda gradient: log.append(1))
        return linear(x)

    linear = nn.Linear(2, 2)
    compiled = precast.compile(function, backend="nop")
    compiled(torch.ones(1, 2)).sum().backward()
    compiled(torch.ones(1, 2)).sum().backward()
    assert len(log) == 3


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("change", [spectral_norm, partial(prune.l1_unstructured, name="weight", amount=0.5)])
def test_torchs_own_hooks(change):
    def made():
        torch.manual_seed(0)
        module = Net()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            change(module.lower.first)
        return module

    eager, module, x = made(), made(), torch.randn(3, 4)
    compiled = precast.compile(module, backend="nop")
    for _ in range(3):
        ours, theirs = compiled(x), eager(x)
        assert torch.equal(ours, theirs)
        ours.sum().backward()
        theirs.sum().backward()
    for left, right in zip(module.parameters(), eager.parameters(), strict=True):
        assert torch.equal(left.grad, right.grad)


def test_always_called_hooks_see_a_module_that_fails():
    class Failing(nn.Module):
        def forward(self, x):
            raise ValueError("no")

    log = []
    module = nn.Sequential(Failing())
    module[0].register_forward_hook(lambda _, args, output: log.append((type(args[0]), output)), always_call=True)
    with pytest.raises(ValueError, match="no"):
        precast.compile(module, backend="nop")(torch.ones(2))
    assert log == [(torch.Tensor, None)]


def test_errors_of_hooks_are_eagers():
    def fail(module, args, output):
        raise KeyError(output.sum().item())

    module = Net()
    module.lower.register_forward_hook(fail)
    with pytest.raises(KeyError) as eager:
        module(torch.ones(1, 4))
    with pytest.raises(KeyError) as ours:
        precast.compile(module, backend="nop")(torch.ones(1, 4))
    assert ours.value.args == eager.value.args


def test_hooks_of_state_dicts_are_the_originals():
    module = Net()
    compiled = precast.compile(module, backend="nop")
    module.register_state_dict_post_hook(lambda each, state, prefix, metadata: state.update(extra=torch.ones(1)))
    compiled.register_load_state_dict_post_hook(lambda each, keys: keys.unexpected_keys.clear())
    state = compiled.state_dict()
    assert state.keys() == module.state_dict().keys()
    assert "extra" in state
    module.load_state_dict(state)
    compiled.load_state_dict(state)


def test_a_function_with_a_module_that_has_hooks():
    module, log = Net(), []
    module.upper.register_forward_hook(forward(log, "upper"))
    compiled = precast.compile(lambda x: module(x).exp(), backend="nop")
    assert torch.allclose(compiled(torch.ones(2, 4)), module(torch.ones(2, 4)).exp())
    assert len(log) == 2


def test_a_wrapped_forward_is_below_the_hooks():
    module, log = Net(), []
    compiled = precast.compile(module, backend="nop")
    original_forward = compiled.forward
    compiled.forward = lambda x: original_forward(x) * 2
    compiled.register_forward_hook(forward(log, "outside"))
    x = torch.ones(2, 4)
    result = compiled(x)
    assert torch.allclose(result, module.forward(x) * 2)
    assert log == [("outside", "Net", result.sum().item())]


class Scaling(nn.Module):
    """Without children: no code of torch's looks up a forward below its hooks."""

    def forward(self, x):
        return x * 2


def test_a_wrapped_forward_of_a_compiled_module_is_seen_by_who_calls_it():
    inner, x = precast.compile(Scaling(), backend="nop"), torch.ones(2)
    outer = precast.compile(lambda x: inner(x), backend="nop")
    assert outer(x).tolist() == [2, 2]
    inner.forward = lambda x: x * 3
    assert outer(x).tolist() == [3, 3]
    inner.forward = lambda x: x * 4
    assert outer(x).tolist() == [4, 4]
    del inner.forward
    assert outer(x).tolist() == [2, 2]


def test_a_forward_that_is_replaced_below_hooks_is_seen():
    module, log, x = Scaling(), [], torch.ones(2)
    module.register_forward_hook(forward(log, "tells"))
    compiled = precast.compile(module, backend="nop")
    assert compiled(x).tolist() == [2, 2]
    module.forward = lambda x: x * 3
    assert compiled(x).tolist() == [3, 3]
    module.forward = lambda x: x * 4
    assert compiled(x).tolist() == [4, 4]
    del module.forward
    assert compiled(x).tolist() == [2, 2]
    assert "in pieces" in precast.variants(compiled)[0].reason
    assert "is another function" in precast.variants(compiled)[-1].reason


def test_a_hook_that_replaces_the_forward_does_so_for_the_next_call():
    module, x = Scaling(), torch.ones(2)
    module.register_forward_pre_hook(lambda module, args: setattr(module, "forward", lambda x: x * 3))
    compiled = precast.compile(module, backend="nop")
    assert compiled(x).tolist() == [2, 2]
    assert compiled(x).tolist() == [3, 3]


def test_another_thread_sees_a_module_as_the_user_knows_it():
    module, x, results = Scaling(), torch.ones(2), []
    entered, may_go = threading.Event(), threading.Event()

    def wait(module, args):
        entered.set()
        assert may_go.wait(60)

    module.forward = lambda x: x * 3
    handle = module.register_forward_pre_hook(wait)
    compiled = precast.compile(module, backend="nop")
    thread = threading.Thread(target=lambda: results.append(compiled(x)))
    thread.start()
    assert entered.wait(60)
    assert type(vars(module)["forward"]) is ExchangedAttribute
    below = precast.compile(lambda x: module.forward(x) + 1, backend="nop")
    assert below(x).tolist() == [4, 4]
    may_go.set()
    thread.join()
    handle.remove()
    assert results[0].tolist() == [3, 3]
    assert type(vars(module)["forward"]) is not ExchangedAttribute
    assert below(x).tolist() == [4, 4]
    assert len(precast.variants(below)) == 1


def test_pieces_in_many_threads():
    module, log, results = Net(), [], []
    module.lower.register_forward_hook(forward(log, "lower"))
    module.register_forward_hook(forward(log, "net"))
    compiled, x = precast.compile(module, backend="nop"), torch.ones(2, 4)
    expected = module(x)
    # While one thread traces, what others write into the same lists is taken for the trace's.
    assert torch.equal(compiled(x), expected)

    def work():
        for _ in range(20):
            results.append(compiled(x))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 80
    assert all(torch.equal(each, expected) for each in results)
    assert len(log) == 2 * 82
    assert not any({"_compiled_call_impl", "forward"} & vars(each).keys() for each in module.modules())


def test_effects_of_hooks_are_found():
    found, tensor, counter = [], torch.ones(1), {"calls": 0}
    in_forward = partial(hook_effect, in_backward=False)
    in_backward = partial(hook_effect, in_backward=True)
    assert in_forward(lambda m, args, output: found.append(output.detach())) is None
    assert in_forward(lambda m, args, output: output * tensor) is None
    assert in_backward(lambda gradient: -gradient.clamp(-1, 1)) is None
    assert in_backward(lambda gradient: found.append(gradient)) == "it can reach a list"
    assert in_backward(lambda gradient: gradient * tensor) == "it reads a tensor from outside"
    assert in_backward(lambda gradient, kept=counter: kept.update(calls=1)) == "it can reach a dict"
    assert in_forward(lambda m, args, output: print(f"{m}")) is None
    assert in_backward(lambda gradient: print(gradient.shape)) == "it calls print"
    assert in_forward(lambda m, args, output: output.tolist()) == "it uses tolist"
    assert in_backward(lambda gradient: f"{gradient}") == "it makes a text"
    assert in_forward(lambda m, args, output: setattr(m, "seen", output)) is None
    assert in_backward(lambda gradient: setattr(gradient, "seen", 1)) == "it calls setattr"
    assert in_forward(print) == "it is a builtin_function_or_method"
    assert in_forward(Meter([])) is not None
