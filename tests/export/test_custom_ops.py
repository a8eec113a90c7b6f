"""Operators from ``torch.library`` stay as they are, through export, decomposition and files."""

import io

import torch

from precast.export import ExportedProgram, export, load, save
from tests.export.models import Function


@torch.library.custom_op("precast_test_export::plain", mutates_args=())
def plain(x: torch.Tensor) -> torch.Tensor:
    return x.sin()


@plain.register_fake
def _(x):
    return torch.empty_like(x)


@torch.library.custom_op("precast_test_export::with_gradient", mutates_args=())
def with_gradient(x: torch.Tensor) -> torch.Tensor:
    return x * x


@with_gradient.register_fake
def _(x):
    return torch.empty_like(x)


with_gradient.register_autograd(
    lambda ctx, gradient: gradient * 2 * ctx.saved_tensors[0],
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(inputs[0]),
)


@torch.library.custom_op("precast_test_export::add_one_", mutates_args=("x",))
def add_one_(x: torch.Tensor) -> None:
    x.add_(1)


def targets(exported: ExportedProgram) -> list[str]:
    return [str(node.target) for node in exported.graph.nodes if node.op == "call_function"]


def round_trip(exported: ExportedProgram) -> ExportedProgram:
    file = io.BytesIO()
    save(exported, file)
    return load(file)


def test_without_autograd():
    exported = export(Function(lambda x: plain(x) + 1), (torch.ones(2),))
    assert "precast_test_export.plain.default" in targets(exported)
    assert "precast_test_export.plain.default" in targets(exported.run_decompositions())
    x = torch.randn(2)
    assert torch.equal(round_trip(exported).module()(x), x.sin() + 1)


def test_with_autograd():
    exported = export(Function(lambda x: with_gradient(x).sum()), (torch.ones(2, requires_grad=True),))
    x = torch.randn(2, requires_grad=True)
    exported.module()(x).backward()
    torch.testing.assert_close(x.grad, 2 * x.detach())
    joint = exported.to_joint(loss_index=0)
    torch.testing.assert_close(joint.graph_module(x.detach())[-1], 2 * x.detach())


def test_one_that_writes():
    def write(x):
        y = x * 2
        add_one_(y)
        return y

    exported = export(Function(write), (torch.ones(2),))
    assert any("auto_functionalized" in name for name in targets(exported))
    assert round_trip(exported).module()(torch.ones(2)).tolist() == [3, 3]


def test_one_that_writes_into_an_input():
    exported = export(Function(lambda x: add_one_(x)), (torch.ones(2),))
    x = torch.zeros(2)
    round_trip(exported).module()(x)
    assert x.tolist() == [1, 1]
