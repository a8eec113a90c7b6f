"""Control flow and regions: subgraphs with the outer names, right values and gradients, through files and back."""

import copy
import io

import pytest
import torch
from torch._higher_order_ops import map as map_rows
from torch._higher_order_ops import scan, while_loop

import precast
from precast.errors import CaptureError
from precast.export import Dim, ExportedProgram, export, load, save
from tests.export.models import stable_text
from tests.export.test_decompose import joint_gradients


class Base(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.shift = torch.ones(4)


class Cond(Base):
    def forward(self, x):
        twice = x * 2
        return torch.cond(x.sum() > 0, lambda a: self.linear(a) + twice, lambda a: (a - self.shift).sin(), (x,))


class OnSizes(Base):
    def forward(self, x):
        return torch.cond(x.shape[0] > 4, lambda a: a + 1, lambda a: self.linear(a), (x,))


class While(Base):
    def forward(self, x):
        done = while_loop(lambda i, a: i < 3, lambda i, a: (i + 1, a.sin() + self.shift), (torch.tensor(0), x))
        return done[1]


class Map(Base):
    def forward(self, x):
        return map_rows(lambda row, scale: self.linear(row) * scale, x, self.shift)


class Scan(Base):
    def forward(self, x):
        carry, rows = scan(lambda c, row: (c + row * self.shift, (c * row).clone()), torch.zeros(4), x)
        return rows + carry


class Nested(Base):
    def forward(self, x):
        def outer(a):
            with torch.no_grad():
                b = a * 3
            return b + torch.cond(b.sum() > 5, lambda c: c + self.shift, lambda c: c - self.shift, (a,))

        return torch.cond(x.sum() > 0, outer, lambda a: self.linear(a), (x,))


class Regions(Base):
    def forward(self, x):
        with torch.no_grad():
            y = self.linear(x)
            y = torch.cond(y.sum() > 0, lambda a: a.sin(), lambda a: a.cos(), (y,))
        with torch.autocast("cpu", torch.bfloat16):
            z = self.linear(x)
            with torch.no_grad():
                w = self.linear(z)
        return y + z + w


MODULES = [Cond, OnSizes, While, Map, Scan, Nested, Regions]
every_module = pytest.mark.parametrize("kind", MODULES, ids=lambda kind: kind.__name__)


def exported(module: torch.nn.Module, *, requires_grad: bool = False) -> ExportedProgram:
    x = torch.randn(3, 4, requires_grad=requires_grad)
    return export(module, (x,), dynamic_shapes=({0: Dim("batch")},))


def round_trip(program: ExportedProgram) -> ExportedProgram:
    file = io.BytesIO()
    save(program, file)
    return load(file)


@every_module
def test_the_text_of_the_program(kind, assert_golden):
    assert_golden(f"control_flow_{kind.__name__.lower()}", stable_text(exported(kind())))


@every_module
def test_values_are_eagers_before_and_after_saving_and_decomposing(kind):
    module = kind()
    program = exported(module)
    forms = [program, round_trip(program), program.run_decompositions(), round_trip(program.run_decompositions())]
    for batch in (2, 3, 7):
        for sign in (1, -1):
            x = sign * torch.rand(batch, 4)
            for form in forms:
                torch.testing.assert_close(form.module()(x), module(x))


@every_module
def test_exporting_and_saving_again_gives_an_equal_program(kind):
    program = exported(kind())
    assert str(exported(program.module())) == str(program)
    assert str(round_trip(program)) == str(program)


@every_module
def test_gradients_through_the_module_and_in_the_joint_program(kind):
    class Loss(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = kind()

        def forward(self, x):
            return self.inner(x).square().sum()

    module = Loss()
    x = torch.rand(5, 4, requires_grad=True)
    eager = copy.deepcopy(module)
    eager(x).backward()
    program = exported(module, requires_grad=True)
    found = joint_gradients(round_trip(program.to_joint(loss_index=0)), x.detach())
    expected = {f"{name}": p.grad for name, p in eager.named_parameters() if p.grad is not None} | {"x": x.grad}
    for name, gradient in found.items():
        torch.testing.assert_close(gradient, expected.get(name, torch.zeros_like(gradient)))
    assert set(found) >= {name for name, gradient in expected.items() if gradient.any()}
    again = x.detach().requires_grad_()
    program.module()(again).backward()
    torch.testing.assert_close(again.grad, x.grad)


def test_a_choice_in_python_names_the_line_and_the_ways_out():
    class Choosing(torch.nn.Module):
        def forward(self, x):
            return x if x.sum() > 0 else -x

    with pytest.raises(RuntimeError, match=r"test_control_flow\.py:\d+.*return x if(.|\n)*torch\.cond(.|\n)*_check"):
        exported(Choosing())


def test_a_choice_that_is_made_already_is_no_operator():
    class Choosing(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = torch.nn.Parameter(torch.ones(3))

        def forward(self, x):
            return torch.cond(x.shape[0] > 4, lambda x: x.cos(), lambda x: x.sin() * self.scale, (x,))

    program = export(Choosing(), (torch.ones(2, 3),))
    assert [str(node.target) for node in program.graph.nodes if node.op == "call_function"] == [
        "aten.sin.default",
        "aten.mul.Tensor",
    ]


def written(tensor, value):
    tensor.add_(1)
    return value


class Branching(torch.nn.Module):
    def __init__(self, forward) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(4))
        self.run = forward

    def forward(self, x):
        return self.run(self, x)


WRITING = {
    "operand": lambda m, x: torch.cond(x.sum() > 0, lambda a: a.add_(1), lambda a: a - 1, (x,)),
    "view of an operand": lambda m, x: torch.cond(
        x.sum() > 0, lambda a: written(a[0], a * 2), lambda a: a - 1, (x,)
    ),
    "buffer": lambda m, x: torch.cond(
        x.sum() > 0, lambda a: written(m.count, a) + m.count, lambda a: a - 1, (x,)
    ),
    "intermediate": lambda m, x: torch.cond(x.sum() > 0, lambda a: written(a, a * 2), lambda a: a - 1, (x * 1,)),
    "several": lambda m, x: torch.cond(
        x.sum() > 0, lambda a: (torch._foreach_add_([a, a * 2], 1), a * 2)[1], lambda a: a - 1, (x,)
    ),
    "statistics": lambda m, x: torch.cond(
        x.sum() > 0,
        lambda a: torch.nn.functional.batch_norm(a, m.count, m.count + 0, training=True),
        lambda a: a - 1,
        (x,),
    ),
    "loop": lambda m, x: while_loop(lambda i, a: i < 3, lambda i, a: (i + 1, a.add_(1)), (torch.tensor(0), x))[1],
    "rows": lambda m, x: map_rows(lambda row: written(m.count, row + 1), x),
    "scan": lambda m, x: scan(lambda c, a: (c + written(m.count, a), a * 1), torch.zeros(4), x)[1],
}  # fmt: skip


@pytest.mark.parametrize("name", WRITING)
def test_branches_that_write_into_what_is_outside_of_them_are_refused(name):
    with pytest.raises(CaptureError, match="writes into a tensor from outside of it") as caught:
        export(Branching(WRITING[name]), (torch.ones(3, 4),))
    assert "test_control_flow.py" in str(caught.value)


def test_branches_may_write_into_what_they_made():
    module = Branching(lambda m, x: torch.cond(x.sum() > 0, lambda a: (a * 2).add_(1), lambda a: a - 1, (x,)))
    x = torch.ones(3, 4)
    torch.testing.assert_close(export(module, (x,)).module()(x), x * 2 + 1)


SHARING = {
    "an operand comes back": lambda m, x: torch.cond(x.sum() > 0, lambda a: a, lambda a: a - 1, (x,)),
    "a view of it": lambda m, x: torch.cond(x.sum() > 0, lambda a: a.view(-1), lambda a: a.reshape(-1) * 2, (x,)),
    "the same twice": lambda m, x: torch.cond(x.sum() > 0, lambda a: (a * 2,) * 2, lambda a: (a, a - 1), (x,))[1],
    "operands over one memory": lambda m, x: torch.cond(
        x.sum() > 0, lambda a, b: a @ b, lambda a, b: a @ b * 2, (x, x.T)
    ),
    "a loop that hands on": lambda m, x: while_loop(
        lambda i, a, b: i < 3, lambda i, a, b: (i + 1, a, b + a), (torch.tensor(0), x, x * 2)
    )[2],
    "rows": lambda m, x: map_rows(lambda row: row, x),
    "scan": lambda m, x: scan(lambda c, row: (c, row), torch.zeros(4), x)[1],
}


@pytest.mark.parametrize("name", SHARING)
def test_results_of_branches_that_share_memory_are_values(name):
    program = export(Branching(SHARING[name]), (torch.ones(3, 4),))
    for x in (torch.ones(3, 4), -torch.ones(3, 4)):
        wanted = program.module()(x)
        torch.testing.assert_close(program.run_decompositions().module()(x), wanted)
        torch.testing.assert_close(precast.compile(Branching(SHARING[name]), fullgraph=True)(x), wanted)
