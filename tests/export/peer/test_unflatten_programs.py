"""The hierarchy of modules that ``unflatten`` returns, beside PyTorch's: modules that share, nest, repeat and write."""

import copy
import io
import random
import warnings

import pytest
import torch
from torch import nn
from torch.export import export as torch_export
from torch.export import unflatten as torch_unflatten

import precast


class Shared(nn.Module):
    def __init__(self):
        super().__init__()
        norm = nn.LayerNorm(4)
        self.net = nn.Sequential(norm, nn.ReLU(), norm, nn.ReLU())
        self.again = norm

    def forward(self, x):
        return self.again(self.again(self.net(x)))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("count", torch.zeros(4))
        self.register_buffer("unsaved", torch.ones(4), persistent=False)
        self.constant = torch.arange(4.0)

    def forward(self, x, *, scale=1):
        self.count.add_(1)
        return {"y": self.linear(x) * scale + self.constant + self.unsaved, "count": self.count * 2}


class Nested(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Block(), Block()])
        self.table = nn.ModuleDict({"a": nn.Linear(4, 4, bias=False), "b": nn.Tanh()})
        self.unused = nn.Linear(2, 2)
        self.root = nn.Parameter(torch.ones(4))

    def forward(self, x):
        for block in self.blocks:
            x = block(x, scale=2)["y"] + block.count
        return self.table["b"](self.table["a"](x)) * self.root + self.blocks[0].linear.bias


class Repeats(nn.Module):
    def __init__(self):
        super().__init__()
        self.block = Block()

    def forward(self, x):
        first = self.block(x)
        second = self.block(first["y"], scale=3)
        return self.block(second["y"])["y"] + first["count"]


class PassesState(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 4))
        self.inner = Calls(lambda x, w: x @ w)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x):
        self.seen.add_(x.sum())
        return self.inner(x, self.weight) + self.seen


class Calls(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *args, **kwargs):
        return self.function(*args, **kwargs)


class Sizes(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = Calls(lambda x: x.new_ones(x.shape[0]) * x.shape[0])
        self.second = Calls(lambda x, n: x.reshape(n, 2, 2) + n)

    def forward(self, x):
        return self.second(x, x.shape[0]).sum((1, 2)) + self.first(x)


class Regions(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.quiet = Calls(self.without_gradients)
        self.chooses = Calls(lambda x: torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (x,)))

    @staticmethod
    def without_gradients(x):
        with torch.no_grad():
            return x * 2

    def forward(self, x):
        return self.chooses(self.quiet(self.linear(x)))


class Empty(nn.Module):
    def __init__(self):
        super().__init__()
        self.same = nn.Identity()
        self.dropout = nn.Dropout(0.0)

    def forward(self, x, y):
        return self.same(y), self.dropout(self.same(x))


X = torch.randn(3, 4)
MODULES = {
    "shared": (Shared, (X,)),
    "nested": (Nested, (X,)),
    "repeats": (Repeats, (X,)),
    "passes_state": (PassesState, (X,)),
    "sizes": (Sizes, (X,)),
    "regions": (Regions, (X,)),
    "empty": (Empty, (X, X)),
    "transformer": (lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 2, 8, 0.0), 2), (X[None],)),
    "conv": (lambda: nn.Sequential(nn.Conv1d(3, 2, 1), nn.BatchNorm1d(2), nn.Dropout(0.0)), (X[None],)),
}  # fmt: skip


def random_graph_of_modules(seed: int, count: int) -> nn.Module:
    """Modules that call each other later ones, several times, and read and write buffers of their own and of others."""
    rng = random.Random(seed)
    classes: list[nn.Module] = []
    for number in reversed(range(count)):
        classes.append(Link(number, rng, [(count - 1 - i, each) for i, each in enumerate(classes)]))
    return classes[-1]


class Link(nn.Module):
    def __init__(self, number: int, rng: random.Random, later: list[tuple[int, nn.Module]]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4))
        self.register_buffer("state", torch.zeros(4))
        self.constant = torch.full((4,), float(number))
        called = rng.sample(later, min(len(later), rng.randint(1, 3))) if later else []
        for index, module in called:
            self.add_module(f"n{index}", module)
        self.steps = [rng.choice(called)[0] for _ in range(rng.randint(1, 3))] if called else []
        self.writes = rng.random() < 0.6
        self.writes_below = rng.random() < 0.4

    def forward(self, x):
        x = x * self.weight + self.constant
        if self.writes:
            self.state.add_(1)
        for index in self.steps:
            child = getattr(self, f"n{index}")
            x = child(x + 1) + child.state
            if self.writes_below:
                child.state.mul_(2)
        return x + self.state


def both(make, args, shapes=None, keep=()):
    torch.manual_seed(0)
    module = make()
    program = precast.export(copy.deepcopy(module), args, dynamic_shapes=shapes, preserve_module_call_signature=keep)
    return module, program, precast.unflatten(program)


def assert_runs_as(unflattened: nn.Module, eager: nn.Module, *calls) -> None:
    """Results and updated state of several calls."""
    for args in calls:
        torch.testing.assert_close(unflattened(*args), eager(*args))
    saved = unflattened.state_dict()
    assert sorted(saved) == sorted(eager.state_dict())
    torch.testing.assert_close(dict(saved), dict(eager.state_dict()))


@pytest.mark.parametrize("name", MODULES)
def test_it_runs_and_is_built_as_the_original(name):
    make, args = MODULES[name]
    eager, _, unflattened = both(make, args)
    assert_runs_as(unflattened, eager, args, args)
    paths = [path for path, _ in unflattened.named_modules(remove_duplicate=False) if "@" not in path]
    graphs = {path for path in paths if path.split(".")[-1].endswith(("_graph_0", "submod_0", "_graph_1", "submod_1"))}
    assert [path for path in paths if path not in graphs] == [
        path for path, _ in eager.named_modules(remove_duplicate=False)
    ]


@pytest.mark.parametrize("name", ["shared", "nested", "repeats", "passes_state", "regions", "conv"])
def test_submodules_are_shared_named_and_typed_as_pytorchs(name):
    make, args = MODULES[name]
    eager, _, unflattened = both(make, args)
    with warnings.catch_warnings(action="ignore"):
        peer = torch_unflatten(torch_export(copy.deepcopy(eager), args))
    names = [path for path, _ in peer.named_modules(remove_duplicate=False)]
    assert {path for path, _ in unflattened.named_modules(remove_duplicate=False)} >= {
        path for path in names if "submod" not in path and "graph" not in path and "@" not in path
    }
    for path in names:
        theirs = peer.get_submodule(path)
        original = dict(eager.named_modules(remove_duplicate=False)).get(path, nn.ModuleList())
        if hasattr(theirs, "type_name") and not isinstance(original, nn.ModuleList | nn.ModuleDict):
            assert unflattened.get_submodule(path).type_name() == theirs.type_name(), path
    objects = {path: id(module) for path, module in peer.named_modules(remove_duplicate=False)}
    ours = {path: id(module) for path, module in unflattened.named_modules(remove_duplicate=False)}
    for first in objects.keys() & ours.keys():
        for second in objects.keys() & ours.keys():
            if objects[first] == objects[second]:
                assert ours[first] == ours[second], (first, second)


@pytest.mark.parametrize("seed", range(6))
def test_graphs_of_modules_of_random_shape(seed):
    args = (torch.randn(4),)
    eager, _, unflattened = both(lambda: random_graph_of_modules(seed, 5), args)
    assert_runs_as(unflattened, eager, args, (torch.randn(4),))


@pytest.mark.parametrize("seed", range(6))
def test_graphs_of_modules_of_random_shape_with_kept_signatures(seed):
    args = (torch.randn(4),)
    torch.manual_seed(0)
    names = [name for name, _ in random_graph_of_modules(seed, 4).named_modules(remove_duplicate=False) if name]
    eager, _, unflattened = both(lambda: random_graph_of_modules(seed, 4), args, keep=names)
    assert_runs_as(unflattened, eager, args, (torch.randn(4),))


def test_a_shared_submodule_is_one_object():
    _, _, unflattened = both(*MODULES["shared"])
    assert unflattened.get_submodule("net.0") is unflattened.get_submodule("net.2") is unflattened.again
    assert unflattened.get_submodule("net.1") is not unflattened.get_submodule("net.3")


def test_submodules_with_kept_signatures_are_swapped_by_name():
    eager, _, unflattened = both(*MODULES["nested"], keep=["blocks.0", "blocks.1", "table.a"])
    other = nn.Linear(4, 4, bias=False)
    unflattened.table.a = other
    changed = copy.deepcopy(eager)
    changed.table["a"] = other
    torch.testing.assert_close(unflattened(X), changed(X))


def test_a_swapped_submodule_takes_all_calls():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.part = Calls(lambda x, flag: x + 1 if flag else x * 2)

        def forward(self, x):
            return self.part(self.part(x, True), False)

    eager, _, unflattened = both(Twice, (X,), keep=["part"])
    torch.testing.assert_close(unflattened(X), eager(X))
    torch.testing.assert_close(unflattened(X), eager(X))
    unflattened.part = Calls(lambda x, flag: x - 1)
    torch.testing.assert_close(unflattened(X), X - 2)


class Counting(nn.Module):
    """Updates a buffer; with ``returns`` it gives that back, too."""

    def __init__(self, step=1, returns=False):
        super().__init__()
        self.register_buffer("count", torch.zeros(()))
        self.step, self.returns = step, returns

    def forward(self, x):
        self.count.add_(self.step)
        return (x * 2, self.count) if self.returns else x * self.count


class Around(nn.Module):
    def __init__(self, forward, **parts):
        super().__init__()
        self.run = forward
        for name, part in parts.items():
            self.add_module(name, part)

    def forward(self, x):
        return self.run(self, x)


class CountingInside(nn.Module):
    def __init__(self):
        super().__init__()
        self.counting, self.linear = Counting(), nn.Linear(4, 4)

    def forward(self, x):
        return self.linear(self.counting(x)) + self.counting.count


class AddsToItsInput(nn.Module):
    def forward(self, x):
        x.add_(1)
        return x * 2


# What calls submodules that write, and the names of those that are exchanged.
UPDATES = {
    "once": (lambda: Around(lambda s, x: s.a(x) + 1, a=Counting()), ["a"]),
    "three times": (lambda: Around(lambda s, x: s.a(s.a(s.a(x)) + 1), a=Counting()), ["a"]),
    "read between": (lambda: Around(lambda s, x: s.a(s.a(x) + s.a.count) + s.a.count, a=Counting()), ["a"]),
    "read before": (lambda: Around(lambda s, x: s.a.count * 1 + s.a(x) + s.a(x), a=Counting()), ["a"]),
    "returned": (lambda: Around(lambda s, x: s.a(x)[0] + s.a(x)[1], a=Counting(returns=True)), ["a"]),
    "returned by all": (lambda: Around(lambda s, x: s.a(x), a=Counting(returns=True)), ["a"]),
    "two": (lambda: Around(lambda s, x: s.a(s.b(x)) + s.b(x), a=Counting(), b=Counting(3)), ["a", "b"]),
    "inside": (lambda: Around(lambda s, x: s.a(x) + s.a(x), a=CountingInside()), ["a"]),
    "both levels": (lambda: Around(lambda s, x: s.a(x) + s.a(x), a=CountingInside()), ["a", "a.counting"]),
    "lower level": (lambda: Around(lambda s, x: s.a(x) + s.a(x), a=CountingInside()), ["a.counting"]),
    "inputs": (lambda: Around(lambda s, x: s.a(x) + s.a(x) + x, a=AddsToItsInput()), ["a"]),
    "norms": (
        lambda: Around(lambda s, x: s.b(s.a(x)).relu() + s.a(x), a=nn.BatchNorm1d(4), b=nn.BatchNorm1d(4)),
        ["a", "b"],
    ),
}


@pytest.mark.parametrize("name", UPDATES)
@pytest.mark.parametrize("is_swapped", [False, True])
def test_submodules_that_update_buffers_are_swapped_by_name(name, is_swapped):
    make, names = UPDATES[name]
    x = torch.randn(3, 4)
    eager, _, unflattened = both(make, (x.clone(),), keep=names)
    for path in names if is_swapped else ():
        unflattened.set_submodule(path, copy.deepcopy(eager.get_submodule(path)))
    for _ in range(2):
        ours, theirs = x.clone(), x.clone()
        torch.testing.assert_close((unflattened(ours), ours), (eager(theirs), theirs))
    torch.testing.assert_close(unflattened.state_dict(), eager.state_dict())


def test_gradients_through_submodules_that_update_statistics():
    eager, _, unflattened = both(UPDATES["norms"][0], (torch.ones(3, 4),), keep=["a", "b"])
    x = torch.randn(3, 4)
    for module in (eager, unflattened):
        module(x).square().sum().backward()
    gradients = [{name: p.grad for name, p in module.named_parameters()} for module in (eager, unflattened)]
    torch.testing.assert_close(*gradients)


def test_a_submodule_whose_buffer_others_change_between_its_calls_is_named():
    def run(module, x):
        x = module.a(x)
        module.a.count.mul_(2)
        return module.a(x)

    with pytest.warns(UserWarning, match=r"was kept: a\. They need values"):
        eager, _, unflattened = both(lambda: Around(run, a=Counting()), (X,), keep=["a"])
    assert_runs_as(unflattened, eager, (X,), (X,))


def test_what_is_read_of_submodules_of_submodules_stays_with_them():
    # One of them is reached by two paths, and read by the one before it is called by the other.
    torch.manual_seed(0)
    args = (torch.randn(4),)
    eager, _, unflattened = both(lambda: random_graph_of_modules(106, 5), args)
    assert_runs_as(unflattened, eager, args)


def test_kept_signatures_with_arguments_that_nobody_uses():
    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.part = Calls(lambda x, a, b: (x + a, b))

        def forward(self, x, y):
            values, places = torch.topk(y, 2)
            return self.part(x, values, places)[0]

    args = (torch.randn(2), torch.randn(5))
    eager, _, unflattened = both(Outer, args, keep=["part"])
    torch.testing.assert_close(unflattened(*args), eager(*args))


def test_sizes_are_computed_where_a_kept_signature_does_not_pass_them():
    shapes = ({0: precast.Dim("n", min=2)},)
    eager, _, unflattened = both(*MODULES["sizes"], shapes=shapes, keep=["first", "second"])
    unflattened.second = copy.deepcopy(eager.second)
    for rows in (3, 5):
        args = (torch.randn(rows, 4),)
        torch.testing.assert_close(unflattened(*args), eager(*args))


def test_it_is_traced_again_by_fx_and_by_export():
    class Takes(nn.Module):
        def forward(self, x, y):
            return x[0] + x[1] + y["foo"]

    args = ((X, X), {"foo": X})
    eager, _, unflattened = both(Takes, args)
    leaf = torch.fx.PH
    traced = torch.fx.symbolic_trace(unflattened, concrete_args=((leaf, leaf), {"foo": leaf}))
    torch.testing.assert_close(traced(*args), eager(*args))
    for name in ("nested", "repeats"):
        make, args = MODULES[name]
        eager, _, unflattened = both(make, args)
        torch.testing.assert_close(precast.export(unflattened, args).module()(*args), eager(*args))


def test_every_node_of_every_level_has_a_value_and_placeholders_come_first():
    _, _, unflattened = both(*MODULES["nested"])
    for module in unflattened.modules():
        if isinstance(module, torch.fx.GraphModule):
            assert all("val" in node.meta for node in module.graph.nodes if node.op not in ("output", "get_attr"))
            kinds = [node.op == "placeholder" for node in module.graph.nodes]
            assert kinds == sorted(kinds, reverse=True)


def test_parameters_keep_whether_they_are_trained():
    class Frozen(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 4).requires_grad_(False)

        def forward(self, x):
            return self.linear(x)

    _, _, unflattened = both(Frozen, (X,))
    assert not any(parameter.requires_grad for parameter in unflattened.parameters())


def test_state_is_loaded_and_copied():
    eager, _, unflattened = both(*MODULES["repeats"])
    other = Repeats()
    copied = copy.deepcopy(unflattened)
    copied.load_state_dict(other.state_dict())
    assert_runs_as(copied, other, (X,))
    assert_runs_as(unflattened, eager, (X,))


def test_what_was_saved_is_unflattened_as_before():
    eager, program, _ = both(*MODULES["repeats"], keep=["block"])
    file = io.BytesIO()
    precast.save(program, file)
    assert_runs_as(precast.unflatten(precast.load(file)), eager, (X,), (X,))


def test_calls_of_another_form_go_through_the_adapter():
    class Reorders(precast.FlatArgsAdapter):
        def adapt(self, target_spec, input_spec, input_args, metadata=None, obj=None):
            return list(reversed(input_args))

    class Takes(nn.Module):
        def forward(self, a, b):
            return a["x"] - b

    program = precast.export(Takes(), ({"x": X}, X + 1))
    unflattened = precast.unflatten(program, Reorders())
    torch.testing.assert_close(unflattened(X + 1, X), torch.full((3, 4), -1.0))
    torch.testing.assert_close(unflattened({"x": X}, X + 1), torch.full((3, 4), -1.0))


def test_wrong_inputs_are_refused():
    _, _, unflattened = both(*MODULES["nested"])
    with pytest.raises(ValueError, match=r"shape\[0\]"):
        unflattened(torch.randn(6, 4))
