"""Control flow and regions: subgraphs with the outer names, right values and gradients, through files and back."""

import copy
import io

import pytest
import torch
from torch._higher_order_ops import map as map_rows
from torch._higher_order_ops import scan, while_loop

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
