"""Programs that PyTorch's exporter made run here: as objects, and from the files that it writes."""

import collections
import copy
import io
import warnings
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.utils._pytree as pytree
from torch import nn
from torch.export import Dim

import precast
from precast.errors import ArtifactError, InputValueError

AUTO = Dim.AUTO
Point = collections.namedtuple("Point", ["x", "y"])
pytree._register_namedtuple(Point, serialized_type_name="tests.Point")


class Marked(torch.Tensor):
    """A subclass, which PyTorch stores by pickle."""


class Calls(nn.Module):
    """A module that calls a function."""

    def __init__(self, function, **state):
        super().__init__()
        self.function = function
        for name, value in state.items():
            if isinstance(value, torch.Tensor) and not isinstance(value, nn.Parameter):
                self.register_buffer(name, value)
            else:
                setattr(self, name, value)

    def forward(self, *args, **kwargs):
        return self.function(self, *args, **kwargs)


@dataclass
class Case:
    module: nn.Module
    args: tuple
    kwargs: Any = None
    shapes: Any = None
    others: tuple = ()
    decomposed: bool = False


class Stateful(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("count", torch.zeros(4))
        self.register_buffer("unsaved", torch.ones(4), persistent=False)
        self.constant = torch.arange(4.0)

    def forward(self, x, y=None, *, k=2.0):
        self.count.add_(1)
        where = (x > 0).nonzero()
        both = torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (x,))
        return {"a": self.linear(x) * self.constant + self.unsaved + k + x.shape[0] + self.count, "b": [both, where]}


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.second = nn.Linear(4, 4)
        self.second.weight = self.first.weight
        self.part = nn.Parameter(self.first.weight.detach().t()[1:3])

    def forward(self, x):
        with torch.no_grad():
            y = self.first(x)
        return self.second(x) + y, self.part.sum()


class WritesInput(nn.Module):
    def forward(self, x, y):
        x.mul_(2)
        y[:, 0] = 1
        return x + y.sum()


class Varying(nn.Module):
    def forward(self, d, *args, k):
        return d["a"] + args[0][: d["a"].shape[0] // 2].repeat(2) + k


class Halves(nn.Module):
    def forward(self, x):
        if x.shape[0] % 2 == 0:
            return x.reshape(2, -1).sum(1)
        return x


def loops(self, x):
    return torch._higher_order_ops.while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, x * 2), (torch.tensor(0), x))


def dtypes(self, x):
    return x.to(torch.bfloat16), x.to(torch.complex64), torch.full((2,), float("inf")), x.double().long().bool()


CASES = {
    "state": Case(Stateful(), (torch.randn(3, 4),), {"k": 3.0}, {"x": {0: Dim("n", min=2, max=99)}, "k": None}, (5, 9)),
    "tied": Case(Tied(), (torch.randn(2, 4),)),
    "writes": Case(WritesInput(), (torch.randn(2, 3), torch.randn(2, 3))),
    "writes_decomposed": Case(WritesInput(), (torch.randn(2, 3), torch.randn(2, 3)), decomposed=True),
    "batch_norm": Case(nn.BatchNorm1d(4), (torch.randn(3, 4),)),
    "batch_norm_decomposed": Case(nn.BatchNorm1d(4), (torch.randn(3, 4),), decomposed=True),
    "dropout": Case(nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5)).eval(), (torch.randn(2, 3),)),
    "varying": Case(
        Varying(),
        ({"a": torch.randn(4)}, torch.randn(7)),
        {"k": torch.randn(4)},
        ({"a": {0: AUTO}}, ({0: AUTO},), {0: AUTO}),
    ),
    "even": Case(Halves(), (torch.randn(6),), None, ({0: 2 * Dim("half", max=8)},), (8, 10)),
    "halves": Case(Halves(), (torch.randn(6),), None, ({0: AUTO},), (8, 10)),
    "outputs": Case(Calls(lambda self, x: (*x.topk(2), x.split(2), *x.max(0), None, 3)), (torch.randn(4),)),
    "while_loop": Case(Calls(loops), (torch.randn(4),)),
    "dtypes": Case(Calls(dtypes), (torch.randn(4),)),
    "item": Case(Calls(lambda self, x, n: x[: n.item()] * 2), (torch.randn(4), torch.tensor(2))),
    "named_tuple": Case(Calls(lambda self, p: Point(p.x + 1, {"z": p.y})), (Point(torch.ones(2), torch.zeros(2)),)),
    "constants": Case(Calls(lambda self, x, s, n: x * n if s == "a" else x), (torch.randn(2), "a", 3)),
    "lstm": Case(nn.LSTM(3, 4, batch_first=True), (torch.randn(2, 5, 3),)),
    "attention": Case(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval(), (torch.randn(2, 3, 8),)),
    "conv": Case(
        nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU()).eval(),
        (torch.randn(2, 3, 8, 8),),
        None,
        ({0: AUTO},),
        (3, 5),
    ),
    "format": Case(Calls(lambda _, x: x.clone(memory_format=torch.channels_last)), (torch.randn(2, 3, 4, 4),)),
    "index": Case(Calls(lambda self, x, i: x[:, i, None]), (torch.randn(2, 3, 4), torch.tensor([0, 2]))),
    "autocast": Case(
        Calls(lambda self, x: torch.autocast("cpu", torch.bfloat16)(lambda x: x @ x)(x)), (torch.randn(2, 2),)
    ),
    "sizes": Case(Calls(lambda self, x: x.sum() + x.shape[0] * 2 // 3 + x.shape[0] / 2), (torch.randn(5),), None,
                  (({0: Dim("n")},),), (7, 9)),
}  # fmt: skip


def exported(case: Case):
    with warnings.catch_warnings(action="ignore"):
        program = torch.export.export(case.module, case.args, case.kwargs, dynamic_shapes=case.shapes, strict=False)
        return program.run_decompositions() if case.decomposed else program


def written(program) -> io.BytesIO:
    file = io.BytesIO()
    with warnings.catch_warnings(action="ignore"):
        torch.export.save(program, file, extra_files={"notes.txt": "from PyTorch"})
    file.seek(0)
    return file


def calls(case: Case):
    yield case.args
    for size in case.others:
        yield tuple(torch.randn(size, *each.shape[1:]) for each in case.args)


def assert_same_runs(case: Case, ours: precast.ExportedProgram, theirs) -> None:
    module, peer = ours.module(), copy.deepcopy(theirs).module()
    for args in calls(case):
        mine, peers = copy.deepcopy(args), copy.deepcopy(args)
        actual = pytree.tree_flatten(module(*mine, **copy.deepcopy(case.kwargs or {})))
        expected = pytree.tree_flatten(peer(*peers, **copy.deepcopy(case.kwargs or {})))
        for left, right in [(actual[0], expected[0]), (pytree.tree_leaves(mine), pytree.tree_leaves(peers))]:
            assert [type(each) for each in left] == [type(each) for each in right]
            torch.testing.assert_close(tensors(left), tensors(right), rtol=1e-6, atol=1e-6, equal_nan=True)
        assert actual[1] == expected[1]


def tensors(leaves):
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor | int | float)]


def state(program) -> dict[str, torch.Tensor]:
    return {**program.state_dict, **program.constants}


@pytest.mark.parametrize("name", CASES)
def test_a_program_of_pytorch_runs_as_an_object_and_from_its_file(name):
    case = CASES[name]
    program = exported(case)
    extra: dict[str, str] = {}
    loaded = precast.load(written(program), extra_files=extra)
    assert extra == {"notes.txt": "from PyTorch"}
    torch.testing.assert_close(state(loaded), state(program), rtol=0, atol=0)
    assert_same_runs(case, loaded, program)
    assert_same_runs(case, precast.from_torch(copy.deepcopy(program)), program)
    assert loaded.graph_signature.parameters == tuple(program.graph_signature.parameters)
    assert loaded.graph_signature.buffers == tuple(program.graph_signature.buffers)


@pytest.mark.parametrize("name", ["state", "tied", "halves", "lstm", "item"])
def test_what_was_read_is_saved_as_any_other_program(name):
    case = CASES[name]
    program = exported(case)
    file = io.BytesIO()
    precast.save(precast.load(written(program)), file)
    assert_same_runs(case, precast.load(file), program)


def test_tied_and_overlapping_state_stays_so():
    loaded = precast.load(written(exported(CASES["tied"])))
    first, second = loaded.state_dict["first.weight"], loaded.state_dict["second.weight"]
    assert first is second
    assert loaded.state_dict["part"].untyped_storage().data_ptr() == first.untyped_storage().data_ptr()


def test_gradients_flow_to_the_parameters():
    program = exported(CASES["attention"])
    module = precast.from_torch(program).module()
    module(*CASES["attention"].args).sum().backward()
    assert all(parameter.grad is not None for parameter in module.parameters())


def test_sizes_that_the_program_was_not_made_for_are_refused():
    loaded = precast.load(written(exported(CASES["halves"])))
    with pytest.raises(InputValueError, match="does not hold"):
        loaded.module()(torch.randn(7))
    ranged = precast.load(written(exported(CASES["state"])))
    with pytest.raises(InputValueError, match="outside of"):
        ranged.module()(torch.randn(100, 4), k=3.0)


def test_what_needs_pickle_is_refused_by_name():
    module = Calls(lambda self, x: x + self.weight, weight=nn.Parameter(torch.ones(2)))
    program = exported(Case(module, (torch.ones(2),)))
    program.state_dict["weight"] = nn.Parameter(torch.ones(2).as_subclass(Marked))
    with pytest.raises(ArtifactError, match="weight is stored by pickle"):
        precast.load(written(program))


def test_programs_of_pytorch_are_taken_where_modules_are():
    program = exported(CASES["dropout"])
    args, file = CASES["dropout"].args, io.BytesIO()
    precast.save(program, file)
    wanted = program.module()(*args)
    taken = [precast.compile(program, backend="interpret"), precast.unflatten(program), precast.load(file).module()]
    for module in taken:
        torch.testing.assert_close(module(*args), wanted)
