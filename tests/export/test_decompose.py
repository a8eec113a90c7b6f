"""``run_decompositions`` and ``to_joint``: simpler ops, gradients, and everything else as it was."""

import copy

import pytest
import torch

from precast.errors import ExportError
from precast.export import Dim, ExportedProgram, OutputKind, export
from tests.export.models import Everything, Function, Scale

aten = torch.ops.aten
FLAG = {"flag": torch.tensor(True)}


class Loss(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.LayerNorm(3), torch.nn.GELU())

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = self.layers(x)
        return y.detach(), torch.nn.functional.mse_loss(y, target)


def ops(exported: ExportedProgram) -> set[object]:
    return {node.target for node in exported.graph.nodes if node.op == "call_function"}


def exported_loss() -> tuple[Loss, ExportedProgram]:
    module, batch = Loss(), Dim("batch", min=2)
    x = torch.randn(3, 4, requires_grad=True)
    return module, export(module, (x, torch.zeros(3, 3)), dynamic_shapes=({0: batch}, {0: batch}))


def test_core_aten_by_default():
    _, exported = exported_loss()
    assert aten.linear.default in ops(exported)
    decomposed = exported.run_decompositions()
    assert decomposed.dialect == "ATEN"
    core = {op for op in ops(decomposed) if isinstance(op, torch._ops.OpOverload) and torch.Tag.core not in op.tags}
    assert not core
    x, target = torch.randn(5, 4), torch.randn(5, 3)
    torch.testing.assert_close(decomposed.module()(x, target), exported.module()(x, target))


def test_the_original_is_unchanged():
    _, exported = exported_loss()
    before = str(exported)
    exported.run_decompositions()
    assert str(exported) == before


def test_preserved_ops_survive_and_are_whole_only_meanwhile():
    _, exported = exported_loss()
    kept = exported.run_decompositions(_preserve_ops=(aten.linear.default, aten.mse_loss.default))
    assert {aten.linear.default, aten.mse_loss.default} <= ops(kept)
    assert aten.linear.default not in ops(exported.run_decompositions())


def test_a_table_of_ones_own_leaves_other_ops_whole():
    _, exported = exported_loss()
    table = {aten.gelu.default: lambda x, approximate="none": x * torch.sigmoid(1.702 * x)}
    found = ops(exported.run_decompositions(table))
    assert aten.linear.default in found
    assert aten.sigmoid.default in found
    assert aten.gelu.default not in found


def test_a_rule_for_a_composite_op():
    module = torch.nn.Linear(2, 2)
    table = {aten.linear.default: lambda x, w, b=None: (x.unsqueeze(-2) * w).sum(-1) + b}
    decomposed = export(module, (torch.ones(3, 2),)).run_decompositions(table)
    assert aten.linear.default not in ops(decomposed)
    x = torch.randn(3, 2)
    torch.testing.assert_close(decomposed.module()(x), module(x))


def test_names_ranges_and_mutations_are_kept():
    exported = export(Everything(), (torch.ones(3, 4),), FLAG, dynamic_shapes={"x": {0: Dim("batch")}, "flag": None})
    decomposed = exported.run_decompositions()
    assert [s.arg for s in decomposed.graph_signature.input_specs] == [
        s.arg for s in exported.graph_signature.input_specs
    ]
    assert decomposed.range_constraints == exported.range_constraints
    assert set(decomposed.graph_signature.buffers_to_mutate.values()) == set(
        exported.graph_signature.buffers_to_mutate.values()
    )
    traced = [node for node in decomposed.graph.nodes if node.op == "call_function"]
    assert sum(node.stack_trace is not None for node in traced) > len(traced) * 0.8


def test_runtime_assertions_are_kept():
    def take(x, n):
        k = n.item()
        torch._check(k >= 2)
        torch._check(k <= 5)
        return x[:k]

    decomposed = export(Function(take), (torch.arange(6.0), torch.tensor(3))).run_decompositions()
    with pytest.raises(RuntimeError, match="assertion"):
        decomposed.module()(torch.arange(6.0), torch.tensor(1))


def joint_gradients(joint: ExportedProgram, *inputs: torch.Tensor) -> dict[str, torch.Tensor]:
    remaining = iter(inputs)
    state = joint.program.state
    flat = [next(remaining) if s.target is None else state[s.target] for s in joint.graph_signature.input_specs]
    results = joint.graph_module(*flat)
    kinds = (OutputKind.GRADIENT_TO_PARAMETER, OutputKind.GRADIENT_TO_USER_INPUT)
    pairs = zip(joint.graph_signature.output_specs, results, strict=True)
    return {str(spec.target): value for spec, value in pairs if spec.kind in kinds}


@pytest.mark.parametrize("how", ["to_joint", "run_decompositions"])
def test_gradients_are_autograds(how):
    module, exported = exported_loss()
    options = {"loss_index": 1} if how == "to_joint" else {"joint_loss_index": 1}
    joint = getattr(exported, how)(**options)
    x, target = torch.randn(5, 4, requires_grad=True), torch.randn(5, 3)
    found = joint_gradients(joint, x.detach(), target)
    eager = copy.deepcopy(module)
    eager(x, target)[1].backward()
    expected = {name: parameter.grad for name, parameter in eager.named_parameters()} | {"x": x.grad}
    torch.testing.assert_close(found, expected)
    backward = joint.graph_signature.backward_signature
    assert backward.gradients_to_user_inputs
    assert set(backward.gradients_to_parameters.values()) == {name for name, _ in module.named_parameters()}


def test_a_joint_program_runs_as_a_module():
    module, exported = exported_loss()
    x, target = torch.randn(5, 4), torch.randn(5, 3)
    torch.testing.assert_close(exported.to_joint(loss_index=-1).module()(x, target), module(x, target))


@pytest.mark.parametrize(
    ("module", "index", "told"),
    [
        (Loss(), 0, "one floating-point scalar"),
        (Loss(), 2, "has 2 outputs"),
        (Function(lambda x, y: (x + y).sum().detach()), 0, "does not depend on anything"),
    ],
)
def test_what_cannot_be_a_loss(module, index, told):
    exported = export(module, (torch.randn(3, 4), torch.zeros(3, 3 if isinstance(module, Loss) else 4)))
    with pytest.raises(ExportError, match=told):
        exported.to_joint(loss_index=index)


def test_ops_cannot_be_kept_whole_beside_gradients():
    _, exported = exported_loss()
    with pytest.raises(ExportError, match="kept whole"):
        exported.run_decompositions(_preserve_ops=(aten.linear.default,), joint_loss_index=1)


def test_decomposing_twice_changes_nothing_more():
    once = export(Scale(), (torch.ones(3),)).run_decompositions()
    assert str(once.run_decompositions()) == str(once)


def test_after_pytorchs_exporter_has_decomposed_a_program():
    model, example = Function(lambda x, n: x.select(0, n.item())), (torch.arange(3.0), torch.tensor(1))
    torch.export.export(model, example).run_decompositions({})
    decomposed = export(model, example).run_decompositions({})
    assert decomposed.module()(torch.arange(3.0), torch.tensor(2)) == 2
