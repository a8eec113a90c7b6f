"""Parameters, buffers and constants become inputs, each once; Python state is left as it was."""

import pytest
import torch

from precast.errors import StateMutationError
from precast.graph.interpreter import interpret
from precast.graph.signature import InputKind, OutputKind
from precast.trace.capture import capture
from precast.trace.functionalize import functionalize

x = torch.ones(2)


def state_of(program):
    return [(spec.kind, spec.target) for spec in program.signature.inputs if spec.target is not None]


class Tied(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(2, 2, bias=False)
        self.second = torch.nn.Linear(2, 2, bias=False)
        self.second.weight = self.first.weight
        self.register_buffer("mean", torch.zeros(2))
        self.register_buffer("scratch", torch.zeros(2), persistent=False)
        self.table = torch.full((2,), 3.0)

    def forward(self, x):
        return self.second(self.first(x)) + self.mean + self.scratch + self.table


def test_parameters_then_buffers_then_constants():
    assert state_of(capture(Tied(), (x,))) == [
        (InputKind.PARAMETER, "first.weight"),
        (InputKind.BUFFER, "mean"),
        (InputKind.BUFFER, "scratch"),
        (InputKind.CONSTANT_TENSOR, "table"),
    ]


def test_inputs_are_named_after_their_kind():
    names = [spec.arg.name for spec in capture(Tied(), (x,)).signature.inputs]
    assert names == ["p_first_weight", "b_mean", "b_scratch", "c_table", "x"]


def test_buffers_know_whether_they_persist():
    specs = capture(Tied(), (x,)).signature.inputs_of(InputKind.BUFFER)
    assert [spec.persistent for spec in specs] == [True, False]


def test_unused_parameters_are_still_inputs():
    class Unused(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(2))

        def forward(self, x):
            return x + 1

    assert state_of(capture(Unused(), (x,))) == [(InputKind.PARAMETER, "weight")]


def test_state_is_shared_with_the_module():
    model = Tied()
    assert capture(model, (x,)).state["first.weight"] is model.first.weight


def test_bound_methods_know_their_module():
    model = Tied()
    assert state_of(capture(model.forward, (x,))) == state_of(capture(model, (x,)))


def test_modules_in_partials_and_closures():
    from functools import partial

    model = torch.nn.Linear(2, 2, bias=False)
    assert state_of(capture(lambda x: model(x), (x,))) == [(InputKind.PARAMETER, "model.weight")]
    with_module = partial(lambda x, layer: layer(x), layer=model)
    assert state_of(capture(with_module, (x,))) == [(InputKind.PARAMETER, "layer.weight")]


def test_views_of_a_parameter_are_no_constants():
    class Half(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(4))

        def forward(self, x):
            return x * self.weight[:2]

    assert state_of(capture(Half(), (x,))) == [(InputKind.PARAMETER, "weight")]


def test_no_real_computation_happens():
    model = torch.nn.BatchNorm1d(2)
    capture(model.train(), (torch.ones(4, 2),))
    assert model.num_batches_tracked == 0
    torch.testing.assert_close(model.running_mean, torch.zeros(2))


class Counter(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x):
        self.count = self.count + 1
        return x * self.count


def test_an_assigned_buffer_becomes_an_update():
    model = Counter()
    program = functionalize(capture(model, (x,)))
    assert next((s.kind, s.target) for s in program.signature.outputs) == (OutputKind.BUFFER_MUTATION, "count")
    assert interpret(program, x).tolist() == [1.0, 1.0]
    assert interpret(program, x).tolist() == [2.0, 2.0]
    assert model.count == 2


def test_capturing_leaves_an_assigned_buffer_as_it_was():
    model = Counter()
    before = model.count
    capture(model, (x,))
    assert model.count is before


def test_a_buffer_of_another_shape_is_refused():
    class Grows(Counter):
        def forward(self, x):
            self.count = x * 2
            return x

    with pytest.raises(StateMutationError, match="replaces a buffer by a tensor of another shape"):
        capture(Grows(), (x,))


class Remembers(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = 0
        self.log = []
        self.cache = {}

    def forward(self, x):
        self.calls += 1
        self.log.append("called")
        self.cache["size"] = tuple(x.shape)
        self.new = "attribute"
        return x + 1


def test_plain_python_state_is_restored():
    model = Remembers()
    capture(model, (x,))
    assert (model.calls, model.log, model.cache) == (0, [], {})
    assert not hasattr(model, "new")


def test_python_state_is_restored_after_an_exception():
    class Fails(Remembers):
        def forward(self, x):
            super().forward(x)
            raise KeyError

    model = Fails()
    with pytest.raises(KeyError):
        capture(model, (x,))
    assert (model.calls, model.log, model.cache) == (0, [], {})
    assert not hasattr(model, "new")


class Leaks(torch.nn.Module):
    def __init__(self, where):
        super().__init__()
        self.where = where
        self.last = None
        self.log = []
        self.cache = {}

    def forward(self, x):
        y = x * 2
        if self.where == "attribute":
            self.last = y
        elif self.where == "new attribute":
            self.fresh = y
        elif self.where == "list":
            self.log.append(y)
        elif self.where == "dict":
            self.cache["y"] = y
        return y


@pytest.mark.parametrize(
    ("where", "name"), [("attribute", "last"), ("new attribute", "fresh"), ("list", "log"), ("dict", "cache")]
)
def test_a_tensor_left_in_python_state_is_refused(where, name):
    model = Leaks(where)
    with pytest.raises(StateMutationError, match=f"stores a tensor in {name}"):
        capture(model, (x,))
    assert (model.last, model.log, model.cache) == (None, [], {})
    assert not hasattr(model, "fresh")


class Converts(torch.nn.Module):
    def __init__(self, dtype):
        super().__init__()
        self.dtype = dtype
        self.inner = torch.nn.Linear(2, 2)

    def forward(self, x):
        self.inner = self.inner.to(self.dtype)
        return self.inner(x.to(self.dtype))


def test_a_conversion_that_changes_nothing_keeps_the_parameters():
    model = Converts(torch.float32)
    before = list(model.parameters())
    program = capture(model, (x,))
    assert [target for _, target in state_of(program)] == ["inner.weight", "inner.bias"]
    assert list(map(id, model.parameters())) == list(map(id, before))


def test_a_conversion_of_parameters_is_refused_and_undone():
    model = Converts(torch.float64)
    before = list(model.parameters())
    with pytest.raises(StateMutationError, match="converts the parameters"):
        capture(model, (x,))
    assert list(map(id, model.parameters())) == list(map(id, before))


def test_a_submodule_made_in_the_forward_is_refused_and_taken_away():
    class Makes(torch.nn.Module):
        def forward(self, x):
            self.made = torch.nn.Linear(2, 2)
            return self.made(x)

    model = Makes()
    with pytest.raises(StateMutationError, match="replaces parameters or submodules: made"):
        capture(model, (x,))
    assert not list(model.children())


def test_the_error_names_the_line_of_the_assignment():
    with pytest.raises(StateMutationError) as failure:
        capture(Leaks("attribute"), (x,))
    assert "self.last = y" in failure.value.at


def test_a_tensor_left_in_a_closure_variable_is_refused():
    last = None

    def function(x):
        nonlocal last
        last = x * 2
        return last

    with pytest.raises(StateMutationError, match="the variable last"):
        capture(function, (x,))
    assert last is None


def test_writing_into_a_constant_is_refused():
    total = torch.zeros(2)

    def function(x):
        total.add_(x)
        return x

    with pytest.raises(StateMutationError, match="writes into total") as failure:
        functionalize(capture(function, (x,)))
    assert "total.add_(x)" in failure.value.at
    assert total.tolist() == [0.0, 0.0]


def test_gradients_of_real_parameters_stay_untouched():
    model = torch.nn.Linear(2, 1)

    def step(x):
        model(x).sum().backward()
        return model.weight.grad * 1

    capture(step, (x,))
    assert model.weight.grad is None
