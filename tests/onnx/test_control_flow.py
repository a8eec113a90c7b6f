"""Control flow in ONNX: branches and loops as nodes with graphs inside."""

import pytest
import torch
from torch import nn
from torch._higher_order_ops.map import map as map_over
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop

from precast.onnx import export
from precast.trace.capture import Dim


class Choice(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x):
        return torch.cond(x.sum() > 0, lambda x: self.layer(x).sin(), lambda x: x.cos(), (x,))


class Loop(nn.Module):
    def forward(self, step, x):
        return while_loop(lambda step, x: step < 5, lambda step, x: (step + 1, x * 1.1 + step), (step, x))


class Running(nn.Module):
    def forward(self, x):
        return scan(lambda total, row: (total + row, total * 2), torch.zeros(3), x, dim=0)


class Rows(nn.Module):
    def forward(self, x):
        return map_over(lambda row, other: row.sin() + other, x, x[0].clone())


class Nested(nn.Module):
    def forward(self, x):
        def positive(x):
            return torch.cond(x.max() > 2, lambda x: x / 2, lambda x: x * 2, (x,))

        return torch.cond(x.sum() > 0, positive, lambda x: x.abs(), (x,))


@pytest.mark.thinned
@pytest.mark.parametrize("optimize", [True, False])
@pytest.mark.parametrize(
    ("model", "operator", "call"),
    [
        (Choice(), "If", (torch.ones(2, 3),)),
        (Loop(), "Loop", (torch.tensor(0), torch.ones(2))),
        (Running(), "Scan", (torch.randn(4, 3),)),
        (Rows(), "Scan", (torch.randn(4, 3),)),
        (Nested(), "If", (torch.ones(3),)),
    ],
)
def test_operator_and_numbers(model: nn.Module, operator: str, call: tuple[torch.Tensor, ...], optimize: bool):
    program = export(model, call, optimize=optimize)
    assert operator in [node.op_type for node in program.model.graph]


@pytest.mark.parametrize("value", [-1.0, 0.5, 3.0])
def test_branches_are_chosen_at_run_time(value: float):
    x = torch.full((3,), value)
    torch.testing.assert_close(export(Nested(), (torch.ones(3),)).call_as_model(x), Nested()(x))


@pytest.mark.parametrize("start", [0, 3, 9])
def test_loops_run_as_often_as_they_must(start: int):
    call = torch.tensor(start), torch.ones(2)
    torch.testing.assert_close(export(Loop(), (torch.tensor(0), torch.ones(2))).call_as_model(*call), Loop()(*call))


def test_scans_take_any_length():
    program = export(Running(), (torch.randn(4, 3),), dynamic_shapes=({0: Dim("steps", min=2)},))
    x = torch.randn(9, 3)
    torch.testing.assert_close(program.call_as_model(x), Running()(x))


def test_complex_numbers_through_control_flow():
    def run(z):
        z = torch.cond(z.abs().sum() > 3, lambda z: z * 2j, lambda z: z - 1, (z,))
        _, z = while_loop(lambda step, z: step < 3, lambda step, z: (step + 1, z * z), (torch.tensor(0), z))
        return scan(lambda total, row: (total * row, total + row), torch.ones_like(z[0]), z, dim=0)

    z = torch.complex(torch.tensor([[0.5, -0.25], [1.0, 0.5]]), torch.tensor([[0.25, 1.0], [-0.5, 0.5]]))
    program = export(run, (z,))
    torch.testing.assert_close(program.call_as_model(z), run(z))


@pytest.mark.filterwarnings("error:Pred is a Python constant")
def test_a_condition_on_a_dynamic_size_is_no_constant():
    def run(x):
        return torch.cond(x.shape[0] > 3, lambda x: x.sin(), lambda x: x.cos(), (x,))

    program = export(run, (torch.randn(4, 3),), dynamic_shapes=({0: "rows"},))
    torch.testing.assert_close(program.call_as_model(x := torch.randn(2, 3)), x.cos())


@pytest.mark.parametrize("rows", [2, 5])
def test_conditions_on_sizes_as_tensors(rows: int):
    def run(x):
        return torch.cond(torch.tensor(x.shape[0] > 3), lambda x: x.sin(), lambda x: x.cos(), (x,))

    program = export(run, (torch.randn(4, 3),), dynamic_shapes=({0: "rows"},))
    x = torch.randn(rows, 3)
    torch.testing.assert_close(program.call_as_model(x), x.sin() if rows > 3 else x.cos())


def test_a_scan_in_a_branch():
    def run(x):
        return torch.cond(x.sum() > 0, lambda x: scan(step, x[0] * 0, x, dim=0)[1], lambda x: x * 1, (x,))

    def step(total, x):
        return total + x, (total + x).clone()

    program = export(run, (torch.randn(4, 3),))
    for x in (torch.ones(4, 3), -torch.ones(4, 3)):
        torch.testing.assert_close(program.call_as_model(x), run(x))


def test_operators_inside_are_reported():
    program = export(Choice(), (torch.ones(2, 3),))
    assert {"aten::sin", "aten::cos", "higher_order::cond"} <= {use.operator for use in program.rules}
