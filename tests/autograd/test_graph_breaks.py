"""What cannot be captured runs in Python, the modules that it calls compiled."""

import copy
import pickle
import threading
import time
import warnings
from typing import NamedTuple

import pytest
import torch
from torch import nn

import precast
from precast.compilers import nop
from precast.errors import DataDependentError

pytestmark = pytest.mark.filterwarnings("default:.* runs in pieces")


class Graphs:
    """A compiler that counts what it is given."""

    def __init__(self):
        self.count = 0

    def __call__(self, graph_module, inputs):
        self.count += 1
        return nop(graph_module, inputs)


class Body(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(4, 6), nn.GELU(), nn.Linear(6, 4))


class Choice(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = Body()

    def forward(self, x):
        return self.body(x) if x.sum() > 0 else x * 2


class Item(Choice):
    def forward(self, x):
        return self.body(x) * float(f"{x.sum().item():.3f}")


class ThroughNumpy(Choice):
    def forward(self, x):
        return self.body(x) + torch.from_numpy(x.detach().numpy() * 2)


class Lookup(Choice):
    def forward(self, x):
        return self.body(x) * len({"small": 1, "large": 2}[("small", "large")[int(x.max() > 1)]] * "a")


class TakesModule(Choice):
    def forward(self, x):
        return self.apply_to(x, self.body)

    def apply_to(self, x, module):
        return module(x) if bool(x[0, 0] > 0) else module(-x)


class Generated(Choice):
    def forward(self, x):
        return sum(self.body(row[None]) for row in x.split(x.argmax().remainder(2).add(1).tolist()))


class ChoosesInBackward(Choice):
    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * 3

        @staticmethod
        def backward(ctx, gradient):
            return gradient * 3 if ctx.saved_tensors[0].sum() > 0 else gradient * 2

    def forward(self, x):
        return self.Scaled.apply(self.body(x))


class ExchangesParameter(Choice):
    def forward(self, x):
        self.body[0].weight = nn.Parameter(self.body[0].weight.detach() * 2)
        return self.body(x)


class ExchangesModule(Choice):
    def forward(self, x):
        self.body[1] = nn.ReLU()
        return self.body(x)


class Net(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.before, self.inner, self.after = Body(), inner, Body()

    def forward(self, x):
        return self.after(self.inner(self.before(x)))


KINDS = (
    Choice, Item, ThroughNumpy, Lookup, TakesModule, ChoosesInBackward, ExchangesParameter, ExchangesModule
)  # fmt: skip


def inputs(count=4):
    torch.manual_seed(3)
    return [torch.randn(3, 4, requires_grad=True) * sign for sign in (1, -1, 3, -2)[:count]]


@pytest.mark.parametrize("kind", KINDS, ids=[kind.__name__ for kind in KINDS])
def test_results_gradients_and_state_are_those_of_eager(kind):
    torch.manual_seed(0)
    eager = Net(kind())
    model = copy.deepcopy(eager)
    compiled = precast.compile(model, backend=Graphs())
    with pytest.warns(precast.GraphBreakWarning, match=r"Net runs in pieces[\s\S]*\ninner\n  at:.*test_graph_breaks"):
        compiled(inputs()[0])
    eager(inputs()[0])
    for x in inputs():
        leaf, other = (x.detach().requires_grad_() for _ in range(2))
        expected, found = eager(leaf), compiled(other)
        assert torch.equal(found, expected)
        expected.sum().backward()
        found.sum().backward()
        assert torch.equal(other.grad, leaf.grad)
    for one, other in zip(model.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad)


def test_what_is_around_the_break_is_compiled_once():
    graphs = Graphs()
    compiled = precast.compile(Net(Choice()), backend=graphs)
    with torch.no_grad(), warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for x in inputs() * 3:
            compiled(x)
    assert graphs.count == 3, "before, inner.body and after"
    assert len(told) == 1


def test_a_size_that_changes_makes_the_pieces_dynamic():
    graphs = Graphs()
    compiled = precast.compile(Net(Item()), backend=graphs)
    eager = compiled.original_module
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for rows in (2, 3, 4, 5, 6):
            x = torch.randn(rows, 4)
            torch.testing.assert_close(compiled(x), eager(x))
    assert graphs.count == 6, "each of three pieces for its first size and for all others"


def test_the_whole_graph_can_be_demanded():
    with pytest.raises(DataDependentError, match=r"x\.sum\(\) > 0"):
        precast.compile(Net(Choice()), backend="nop", fullgraph=True)(inputs()[0])


def test_all_modules_that_break_are_named():
    model = nn.Sequential(Body(), Choice(), nn.Sequential(Choice(), Item()))
    with pytest.warns(precast.GraphBreakWarning) as told:
        precast.compile(model, backend="nop")(inputs()[0])
    (message,) = [str(each.message) for each in told]
    assert "1, 2.0\n" in message
    assert "2.1\n" in message
    assert told[0].filename == __file__


def test_the_programs_own_error_is_eagers():
    def mismatched(x):
        return x @ x

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(RuntimeError, match="mat1 and mat2 shapes cannot be multiplied") as caught:
            precast.compile(mismatched, backend="nop")(torch.ones(2, 3))
    assert caught.value.__context__ is None


def test_an_error_on_the_way_leaves_nothing_behind():
    class Fails(Choice):
        def forward(self, x):
            if x.sum() < 0:
                raise LookupError("not today")
            return self.body(x)

    torch.manual_seed(0)
    model = Net(Fails())
    compiled = precast.compile(model, backend="nop")
    good, bad = (next(x for x in inputs() if (model.before(x).sum() > 0).item() is wanted) for wanted in (True, False))
    for x in (bad, good, bad, good):
        if x is bad:
            with pytest.raises(LookupError, match="not today"):
                compiled(x)
        else:
            torch.testing.assert_close(compiled(x), model(x))
        assert not any("_compiled_call_impl" in vars(module) for module in model.modules())


BODY = Body()


def test_a_function_runs_in_python_and_the_modules_that_it_names_are_compiled():
    graphs, closed_over = Graphs(), Body()

    def function(x):
        return BODY(x) if x.sum() > 0 else closed_over(x)

    compiled = precast.compile(function, backend=graphs)
    with torch.no_grad():
        with pytest.warns(precast.GraphBreakWarning, match="function runs in pieces"):
            compiled(inputs()[0])
        for x in inputs():
            torch.testing.assert_close(compiled(x), function(x))
    assert graphs.count == 2


def test_modes_and_hooks_of_inner_modules_count():
    model = Net(Choice())
    model.inner.body.append(nn.Dropout(0.5))
    compiled = precast.compile(model, backend="nop")
    x = next(x for x in inputs() if model.before(x).sum() > 0)
    seen = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for is_training in (True, False, True):
            model.train(is_training)
            torch.manual_seed(1)
            found = compiled(x)
            torch.manual_seed(1)
            assert torch.equal(found, model(x))
        handle = model.inner.register_forward_hook(lambda module, args, output: seen.append(output.sum().item()))
        compiled(x)
        handle.remove()
        compiled(x)
    assert len(seen) == 1


def test_copies_and_unpickled_ones_break_for_themselves():
    compiled = precast.compile(Net(Choice()), backend="nop")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = compiled(inputs()[0])
        for other in (copy.deepcopy(compiled), pickle.loads(pickle.dumps(compiled))):
            assert torch.equal(other(inputs()[0]), expected)


def test_threads_run_side_by_side():
    model = Net(Item())
    compiled = precast.compile(model, backend="nop")
    failures = []

    def call(seed):
        generator = torch.Generator().manual_seed(seed)
        with warnings.catch_warnings():
            for _ in range(5):
                x = torch.randn(3, 4, generator=generator)
                if not torch.equal(compiled(x), model(x)):
                    failures.append(seed)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        threads = [threading.Thread(target=call, args=(seed,)) for seed in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not failures
    assert not any("_compiled_call_impl" in vars(module) for module in model.modules())


def test_reading_a_clock_leaves_the_modules_compiled():
    class Timed(Choice):
        def forward(self, x):
            return self.body(x) * (time.perf_counter() > 0)

    graphs = Graphs()
    compiled = precast.compile(Net(Timed()), backend=graphs)
    with torch.no_grad():
        with pytest.warns(UserWarning, match="perf_counter"):
            compiled(inputs()[0])
        for x in inputs():
            torch.testing.assert_close(compiled(x), compiled.original_module(x))
    assert graphs.count == 3


class Checked(NamedTuple):
    values: torch.Tensor
    lengths: torch.Tensor


class Strict(Checked):
    """A container that only takes what it knows, as torch's PackedSequence."""

    __slots__ = ()

    def __new__(cls, values, lengths):
        assert values.dim() == 2
        assert lengths.dtype is torch.int64
        return super().__new__(cls, values, lengths)


def test_arguments_in_containers_that_check_their_contents():
    def function(given):
        return given.values * int(given.lengths.max())

    given = Strict(torch.ones(2, 3), torch.tensor([1, 3]))
    compiled = precast.compile(function, backend="nop")
    with pytest.warns(precast.GraphBreakWarning):
        assert torch.equal(compiled(given), function(given))
    assert precast.variants(compiled)[0].inputs == ("given_values: float32[2, 3]", "given_lengths: int64[2]")
