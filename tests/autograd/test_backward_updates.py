"""What a backward of the user's own writes: into buffers, saved inputs and tensors outside, when it runs."""

import pytest
import torch

import precast
from precast.errors import CaptureError, StateMutationError

runs = torch.zeros(())


class Counting(torch.autograd.Function):
    """Counts its backwards in a tensor that it is given, and in one outside."""

    @staticmethod
    def forward(ctx, x, count):
        ctx.count = count
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        ctx.count.add_(1)
        runs.add_(gradient.sum())
        return gradient * ctx.count, None


class Overwriting(torch.autograd.Function):
    """Writes into an input that it has saved."""

    @staticmethod
    def forward(ctx, x, history):
        ctx.save_for_backward(x, history)
        return x.sin()

    @staticmethod
    def backward(ctx, gradient):
        x, history = ctx.saved_tensors
        history.mul_(0.9).add_(gradient)
        return gradient * x.cos(), None


BACKENDS = ["nop", "native"]


def assert_same(function, backend, run):
    """Whether ``run`` gives the same for a function and for the same compiled."""
    runs.zero_()
    expected = run(function)
    runs.zero_()
    found = run(precast.compile(function, backend=backend))
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_buffer_is_updated_when_the_backward_runs(backend):
    def run(function):
        seen, count, x = [], torch.zeros(()), torch.ones(3, requires_grad=True)
        for _ in range(3):
            result = function(x, count)
            seen.append(count.clone())
            result.sum().backward()
            seen += [count.clone(), runs.clone(), x.grad.clone()]
        return seen

    assert_same(lambda x, count: Counting.apply(x.cos(), count), backend, run)


def test_a_backward_that_runs_twice_updates_twice():
    def run(function):
        count, x = torch.zeros(()), torch.ones(3, requires_grad=True)
        result = function(x, count).sum()
        result.backward(retain_graph=True)
        count.fill_(10)
        result.backward()
        return [count, x.grad]

    assert_same(lambda x, count: Counting.apply(x.cos(), count), "nop", run)


def test_a_backward_that_never_runs_updates_nothing():
    def run(function):
        count, x = torch.zeros(()), torch.ones(3, requires_grad=True)
        results = [function(x, count).detach()]
        with torch.no_grad():
            results.append(function(x, count))
        return [*results, count, runs.clone()]

    assert_same(lambda x, count: Counting.apply(x.cos(), count), "nop", run)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_saved_input_is_written_into(backend):
    def run(function):
        seen, x = [], torch.linspace(0, 1, 3).requires_grad_()
        histories = torch.zeros(3), torch.ones(3)
        for history in (*histories, *histories):
            function(x, history).sum().backward()
            seen += [each.clone() for each in histories]
        return [*seen, x.grad]

    assert_same(lambda x, history: Overwriting.apply(x, history) * 2, backend, run)


def test_a_buffer_of_a_module_is_updated():
    class Module(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(3, 3)
            torch.nn.init.constant_(self.linear.weight, 0.1)
            torch.nn.init.zeros_(self.linear.bias)
            self.register_buffer("backwards", torch.zeros(()))

        def forward(self, x):
            self.backwards.mul_(2)
            return Counting.apply(self.linear(x), self.backwards)

    def train(compile):
        model = Module()
        called = compile(model)
        seen = []
        for _ in range(3):
            called(torch.ones(2, 3)).sum().backward()
            seen += [model.backwards.clone(), model.linear.weight.grad.clone()]
        return seen

    torch.testing.assert_close(train(lambda model: precast.compile(model, backend="nop")), train(lambda model: model))


def test_updates_of_a_backward_inside_of_the_program_are_updates_of_the_program():
    def run(function):
        count, x = torch.zeros(()), torch.ones(3, requires_grad=True)
        for _ in range(3):
            function(x, count)
        return [count, x.grad, runs.clone()]

    assert_same(lambda x, count: Counting.apply(x.cos(), count).sum().backward(), "nop", run)


calls = []


class Noting(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        calls.append("backward")
        return gradient * 2


def test_python_state_that_a_backward_writes_is_written_by_eager():
    def run(function):
        calls.clear()
        x = torch.ones(3, requires_grad=True)
        for _ in range(2):
            function(x).sum().backward()
        return len(calls), x.grad

    with pytest.warns(precast.GraphBreakWarning, match="calls"):
        assert run(precast.compile(lambda x: Noting.apply(x) + 1, backend="nop"))[0] == 2
    with pytest.raises(StateMutationError, match="calls"):
        precast.compile(lambda x: Noting.apply(x) + 1, backend="nop", fullgraph=True)(torch.ones(3, requires_grad=True))
    assert len(calls) == 2


class Spoiling(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.kept = x * 2
        return x * 1

    @staticmethod
    def backward(ctx, gradient):
        ctx.kept.add_(1)
        return gradient * ctx.kept


def test_what_the_forward_keeps_and_the_backward_changes_is_changed_as_in_eager():
    def run(function):
        x = torch.ones(3, requires_grad=True)
        result = function(x).sum()
        result.backward(retain_graph=True)
        result.backward()
        return x.grad

    expected = run(lambda x: Spoiling.apply(x) + 1)
    with pytest.warns(precast.GraphBreakWarning, match="forward has computed"):
        found = run(precast.compile(lambda x: Spoiling.apply(x) + 1, backend="nop"))
    torch.testing.assert_close(found, expected)


def test_a_number_that_only_the_backward_reads_is_checked():
    class Scaling(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 1

        @staticmethod
        def backward(ctx, gradient):
            return gradient * settings["scale"]

    settings = {"scale": 2.0}
    function = precast.compile(lambda x: Scaling.apply(x), backend="nop")
    x = torch.ones(3, requires_grad=True)
    function(x).sum().backward()
    settings["scale"] = 5.0
    function(x).sum().backward()
    assert torch.equal(x.grad, torch.full((3,), 7.0))


class CountsInContext(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.count, ctx.log = 1.0, []
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        ctx.count += 1
        ctx.log.append(ctx.count)
        return gradient * ctx.count * len(ctx.log)


class WritesData(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = x * 3
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, gradient):
        (y,) = ctx.saved_tensors
        y.data.add_(1)
        return gradient * y


class LetsGo(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.held = x * 3
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        held, ctx.held = ctx.held, None
        return gradient * held


@pytest.mark.parametrize("kind", [CountsInContext, WritesData])
@pytest.mark.filterwarnings("ignore::precast.GraphBreakWarning")
def test_what_a_backward_keeps_for_itself_is_there_when_it_runs_again(kind):
    gradients = []
    for function in (kind.apply, precast.compile(lambda x: kind.apply(x), backend="nop")):
        x = torch.ones(2, requires_grad=True)
        result = function(x).sum()
        result.backward(retain_graph=True)
        result.backward()
        gradients.append(x.grad)
    assert torch.equal(*gradients)


def test_a_backward_that_lets_go_of_what_it_held_is_compiled():
    x = torch.ones(2, requires_grad=True)
    precast.compile(lambda x: LetsGo.apply(x), backend="nop", fullgraph=True)(x).sum().backward()
    assert x.grad.tolist() == [3, 3]


class Transposing(torch.autograd.Function):
    """Lays a saved input out anew in its backward."""

    @staticmethod
    def forward(ctx, x, other):
        ctx.save_for_backward(other)
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        ctx.saved_tensors[0].transpose_(0, 1)
        return gradient * 2, None


def test_a_backward_that_lays_an_input_out_anew_is_not_compiled():
    with pytest.raises(CaptureError, match="backward changes the sizes, the strides or the memory"):
        precast.aot_function(Transposing.apply, precast.nop)(torch.ones(2, 2, requires_grad=True), torch.ones(2, 3))
