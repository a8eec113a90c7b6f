"""Programs whose numbers and sizes only running gives: exported, run on other data, saved, decomposed, as PyTorch's."""

import io
import warnings

import pytest
import torch
import torch.utils._pytree as pytree
from torch._higher_order_ops import scan, while_loop
from torch._higher_order_ops.map import map as map_rows

import precast

X = torch.randn(8, 4)
PROGRAMS = {}
SHAPES = {"cond_free_size": (({0: precast.Dim.DYNAMIC}, None),)}
UNLIKE_TORCH = {  # PyTorch's exporter refuses these, or keeps constants of branches to itself
    "cond_free_number", "while_free_number", "map_free_number", "scan_free_number", "while_carries_number",
    "map_over_dynamic_rows", "cond_with_constants", "scan_with_item_inside", "nested",
    "cond_in_cond_with_item_inside", "while_with_a_number_as_index",
}  # fmt: skip


class Calls(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *args):
        return self.function(*args)


def tensor(*values):
    return torch.tensor(*values)


def program(*calls):
    def keep(function):
        PROGRAMS[function.__name__] = (function, calls)
        return function

    return keep


numbers = program((tensor(3), X), (tensor(2), X))
flags = program((tensor(True), X), (tensor(False), X))
rows = program((X,), (X + 1,))


def size(n, least=0, most=8):
    """A number out of a tensor that serves as a size."""
    number = n.item()
    torch._check(number >= least)
    torch._check(number <= most)
    return number


@program((tensor(3.5),), (tensor(5.0),))
def a_float(n):
    f = n.item()
    torch._check(f > 1.0)
    return torch.ones(4) * f + f * 2, torch.tensor([f, 2.0])


@program((tensor(True),), (tensor(False),))
def a_bool(b):
    return torch.full((2,), 1.0) * b.item()


@program((tensor([2, 3, 3]), X), (tensor([4, 1, 3]), X))
def tolist(n, x):
    sizes = n.tolist()
    for each in sizes:
        torch._check(each >= 0)
    return torch.split(x, sizes)[0], x.sum() * sizes[1]


@rows
def nonzero(x):
    places = (x > 0).nonzero()
    return x[places[:, 0], places[:, 1]] * 2, places.shape[0], x[x > 0].reshape(-1, 1), x[x > 0].numel()


@program((X, X - 1), (X + 1, X))
def indices_of_two_dynamic_sizes(x, y):
    return x[(x > 0).nonzero()[:, 0]][:, (y > 0).nonzero()[:, 1]]


@numbers
def slices(n, x):
    u = size(n)
    return x[:u], x[u:], x[:, : torch.sym_min(u, 4)], x[::2][: torch.sym_max(u, 1)]


@numbers
def slices_without_checks(n, x):
    return x[: n.item()] * 2


@numbers
def narrow(n, x):
    u = size(n, 0, 6)
    return x.narrow(0, u, 2), x.narrow(0, 0, u), x[u], x.select(0, u)


@numbers
def pads(n, x):
    return torch.nn.functional.pad(x, (0, size(n)))


@program((tensor(3), tensor(5)), (tensor(6), tensor(2)))
def least_and_most(n, m):
    a, b = size(n), size(m)
    return torch.zeros(torch.sym_max(a, b)), torch.zeros(torch.sym_min(a, b)), torch.zeros(a + b)


@numbers
def tensors_of_numbers(n, x):
    return torch.tensor([n.item()]), torch.tensor(n.item()) + 1, torch.full((2,), n.item())


@numbers
def kthvalue_and_topk(n, x):
    u = size(n, 1)
    return *torch.kthvalue(x, u, 0), *torch.topk(x, u, 0)


@numbers
def several_dynamic_subscripts(n, x):
    places = torch.arange(size(n, 0, 4))
    return x[places, places], x[places][:, places]


@numbers
def factories(n, x):
    u = size(n)
    return torch.arange(u), torch.zeros(u, 2), torch.ones(u).expand(3, u), torch.empty(u, 4).shape[0], x.repeat(u, 1)


@program((tensor(4), torch.arange(16.0)), (tensor(2), torch.arange(16.0)))
def reshapes(n, x):
    u = size(n, 1)
    torch._check(16 % u == 0)
    return x.reshape(u, -1), x.view(u, 16 // u)


@numbers
def checks(n, x):
    u = n.item()
    torch._check_is_size(u)
    torch._check(u < 8)
    torch._check_value(u > 1)
    return x[u], x[:u] + torch.ones(u, 4)


@numbers
def concatenated(n, x):
    u = size(n)
    return torch.cat([x, torch.zeros(u, 4)]), torch.stack([torch.ones(u), torch.zeros(u)])


@numbers
def arithmetic(n, x):
    u = size(n)
    return x * (u / 2) + torch.sym_float(u) * 0.5, x * (u % 3) + u // 2 - u, x * (u << 2) + (u >> 1)


@numbers
def choices_of_numbers(n, x):
    u = n.item()
    return x * torch.sym_ite(u > 4, u, -u), x * torch.sym_ite(torch.sym_not(u > 4), 1, 2)


@program((tensor(True), tensor(3), X), (tensor(False), tensor(5), X))
def cond_with_item_inside(p, n, x):
    return torch.cond(p, lambda n, x: x[: size(n)].sum(), lambda n, x: x.sum() * n.item(), (n, x))


@flags
def cond_with_nonzero_inside(p, x):
    return torch.cond(p, lambda x: (x > 0).nonzero()[:, 0].sum(), lambda x: (x > 1).nonzero()[:, 1].sum(), (x,))


@flags
def cond_with_results_of_different_sizes(p, x):
    return torch.cond(p, lambda x: x[:2].clone(), lambda x: x[:3].clone(), (x,)) + 1


@flags
def cond_with_constants(p, x):
    return torch.cond(p, lambda x: x + torch.tensor([1.0, 2.0, 3.0, 4.0]), lambda x: x * torch.tensor(2.0), (x,))


@numbers
def cond_on_a_number(n, x):
    u = size(n)
    y = torch.cond(u > 2, lambda x: x.sin(), lambda x: x.cos(), (x,))
    return torch.cond(y.sum() > 0, lambda z: z.sin(), lambda z: z.cos(), (x[:u],))


@numbers
def cond_free_number(n, x):
    u = n.item()
    return torch.cond(x.sum() > 0, lambda x: x * u, lambda x: x * (u + 1), (x,))


@program((X, tensor(2)), (-X, tensor(3)))
def cond_in_cond_with_item_inside(x, n):
    def inner(x, n):
        u = size(n)
        return torch.cond(x.sum() > 0, lambda y: y[:u].sum(), lambda y: y[u:].sum() * (u + 1), (x,))

    return torch.cond(n > 2, inner, lambda x, n: x.sum(), (x, n))


@rows
def cond_with_trees(x):
    return torch.cond(x.sum() > 0, lambda d: {"q": (d["a"] + 1, 3)}, lambda d: {"q": (d["a"] - 1, 3)}, ({"a": x},))


@rows
def while_with_a_number_as_index(x):
    def body(i, total):
        u = i.item()
        torch._check(u >= 0)
        torch._check(u < 8)
        return i + 1, total + x[u]

    return while_loop(lambda i, total: i < 4, body, (torch.tensor(0), torch.zeros(4)))


@program((torch.randn(5, 4), X), (torch.randn(6, 4), X))
def cond_free_size(y, x):
    u = y.shape[0]
    return torch.cond(x.sum() > 0, lambda x: x * u, lambda x: x * (u + 1), (x,))


@numbers
def while_with_item_inside(n, x):
    return while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, x * n.item()), (torch.tensor(0), x))


@numbers
def while_free_number(n, x):
    u = n.item()
    return while_loop(lambda i, x: i < u, lambda i, x: (i + 1, x * u), (torch.tensor(0), x))


@numbers
def while_carries_number(n, x):
    return while_loop(lambda i, x: i < 10, lambda i, x: (i + 1, x * 2), (n.item(), x))


@rows
def map_with_item_inside(x):
    return map_rows(lambda r: r * (r > 0).sum().item(), x)


@numbers
def map_over_dynamic_rows(n, x):
    return map_rows(lambda r: r * 2, x[: size(n, 1)])


@numbers
def map_free_number(n, x):
    u = n.item()
    return map_rows(lambda r: r * u, x)


@rows
def scan_with_item_inside(x):
    def step(carry, row):
        carry = carry + row * (row > 0).sum().item() + torch.tensor(1.0)
        return carry, carry.clone()

    return scan(step, torch.zeros(4), x)


@numbers
def scan_free_number(n, x):
    u = n.item()
    return scan(lambda c, r: (c + r * u, (c * u).clone()), torch.zeros(4), x)


@flags
def nested(p, x):
    def count(x):
        return while_loop(lambda i, x: i < (x > 0).sum(), lambda i, x: (i + 1, x + 1), (torch.tensor(0), x))[1]

    return torch.cond(p, count, lambda x: map_rows(lambda r: r * r.sum(), x), (x,))


@program((torch.randn(1, 5, 9, dtype=torch.complex64),), (torch.randn(1, 5, 9, dtype=torch.complex64),))
def istft(spectrum):
    return torch.istft(spectrum, 8, 4, 8, window=torch.hann_window(8) + 0.1)


@rows
def vmap_inside(x):
    return torch.vmap(lambda r: r * 2 + r.sum())(x), torch.vmap(torch.dot)(x, x)


@rows
def regions_that_are_compiled_once(x):
    region = torch.compiler.nested_compile_region(lambda a: a.sin() + 1)
    return region(x) + region(x * 2)


@program((tensor([3, 1, 2]),), (tensor([0, 5, 1]),))
def repeats_and_unique(n):
    return torch.repeat_interleave(torch.arange(3), n), torch.unique(n)


@numbers
def writes_at_a_number(n, x):
    u, y = size(n, 0, 7), x.clone()
    y[u] = 0
    y[:u] = 1
    return y


@program((tensor(2), torch.randn(1, 1, 8, 8)), (tensor(3), torch.randn(1, 1, 8, 8)))
def interpolates(n, x):
    u = size(n, 1)
    return torch.nn.functional.interpolate(x, size=(u, u))


@numbers
def sums_and_products(n, x):
    y = x[: size(n, 2)]
    return y @ y.t(), y.softmax(0), y.mean(0), y.var(0), *y.sort(0), y.flatten(), y.transpose(0, 1).contiguous()


def assert_runs_as(module, function, calls) -> None:
    for args in calls:
        found, wanted = pytree.tree_leaves(module(*args)), pytree.tree_leaves(function(*args))
        assert len(found) == len(wanted)
        for left, right in zip(found, wanted, strict=True):
            torch.testing.assert_close(torch.as_tensor(left), torch.as_tensor(right), equal_nan=True)


def exported(name):
    function, calls = PROGRAMS[name]
    return precast.export(Calls(function), calls[0], dynamic_shapes=SHAPES.get(name)), function, calls


@pytest.mark.parametrize("name", PROGRAMS)
def test_it_runs_on_other_data_and_from_its_file(name):
    program, function, calls = exported(name)
    file = io.BytesIO()
    precast.save(program, file)
    loaded = precast.load(file)
    assert str(loaded) == str(program)
    assert_runs_as(loaded.module(), function, calls)


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
def test_it_runs_decomposed(name):
    program, function, calls = exported(name)
    assert_runs_as(program.run_decompositions().module(), function, calls)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in PROGRAMS if name not in UNLIKE_TORCH])
def test_pytorch_exports_it_as_well(name):
    function, calls = PROGRAMS[name]
    shapes = (({0: torch.export.Dim.DYNAMIC}, None),) if name in SHAPES else None
    with warnings.catch_warnings(action="ignore"):
        peer = torch.export.export(Calls(function), calls[0], dynamic_shapes=shapes)
        assert_runs_as(peer.module(), function, calls)
        converted = precast.from_torch(peer.run_decompositions() if "vmap" in name else peer)
    assert_runs_as(converted.module(), function, calls)


def test_what_was_checked_is_checked_at_each_run():
    program, _, _ = exported("narrow")
    with pytest.raises(RuntimeError, match="<= 6"):
        program.module()(torch.tensor(7), X)
