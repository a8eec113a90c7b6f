"""What ``export`` gives: names, signature, functional graph, and nothing changed around it."""

import copy

import pytest
import torch

from precast.errors import ExportError, InputTypeError, StateMutationError
from precast.export import Dim, ExportedProgram, InputKind, OutputKind, export
from tests.export.models import Everything, Function, Scale, stable_text

FLAG = {"flag": torch.tensor(True)}


def everything() -> ExportedProgram:
    return export(Everything(), (torch.ones(3, 4),), FLAG, dynamic_shapes={"x": {0: Dim("batch")}, "flag": None})


def op_names(exported: ExportedProgram) -> list[str]:
    return [str(node.target) for node in exported.graph.nodes if node.op == "call_function"]


def test_the_text_of_a_program(assert_golden):
    assert_golden("everything", stable_text(everything()))


def test_inputs_are_state_then_arguments():
    kinds = [spec.kind for spec in everything().graph_signature.input_specs]
    order = [InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR, InputKind.USER_INPUT]
    assert kinds == sorted(kinds, key=order.index)


def test_ops_stay_whole_and_nothing_writes():
    names = op_names(everything())
    assert "aten.linear.default" in names
    assert "aten.dropout.default" in names
    assert not any("_.default" in name for name in names)


def test_colliding_names_count_up():
    class Colliding(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.a = torch.nn.Parameter(torch.ones(1))

        def forward(self, p_a, p_a_1):
            return self.a + p_a + p_a_1

    exported = export(Colliding(), (torch.ones(1), torch.ones(1)))
    assert [spec.arg.name for spec in exported.graph_signature.input_specs] == ["p_a_2", "p_a", "p_a_1"]


def test_signature_answers_what_pytorchs_answers():
    signature = everything().graph_signature
    assert signature.parameters == ("linear.weight", "linear.bias", "norm.weight", "norm.bias")
    assert signature.buffers == (
        "count", "scratch", "norm.running_mean", "norm.running_var", "norm.num_batches_tracked",
    )  # fmt: skip
    assert signature.non_persistent_buffers == ("scratch",)
    assert signature.lifted_tensor_constants[0] == "scale"
    assert signature.user_inputs == ("x", "flag")
    assert signature.inputs_to_parameters["p_linear_weight"] == "linear.weight"
    assert set(signature.buffers_to_mutate.values()) == {
        "count", "norm.running_mean", "norm.running_var", "norm.num_batches_tracked",
    }  # fmt: skip
    assert signature.inputs_to_buffers["b_count"] == "count"
    assert signature.parameters_to_mutate == {}
    assert signature.user_inputs_to_mutate == {}
    assert signature.lifted_custom_objs == signature.input_tokens == signature.output_tokens == ()
    assert signature.backward_signature is None
    assert len(signature.user_outputs) == 3


def test_state_is_shared_and_tied_names_are_kept():
    module = Everything()
    exported = export(module, (torch.ones(3, 4),), FLAG)
    assert exported.state_dict["linear.weight"] is module.linear.weight
    assert exported.state_dict["again.weight"] is module.linear.weight
    assert set(exported.state_dict) == set(module.state_dict())
    assert [name for name, _ in exported.named_parameters()] == [name for name, _ in module.named_parameters()]
    assert len(list(exported.parameters())) == 4
    assert dict(exported.named_buffers())["scratch"] is module.scratch
    assert len(list(exported.buffers())) == 5
    assert exported.constants["scale"] is exported.tensor_constants["scale"] is module.scale


def test_parts_of_a_program():
    exported = everything()
    assert exported.dialect == "TRAINING"
    assert exported.graph_module.graph is exported.graph
    assert exported.call_spec.in_spec.num_leaves == 2
    assert exported.example_inputs[1] is not None
    assert [entry.fqn for entry in exported.module_call_graph] == ["", "linear", "norm", "dropout", "again"]
    ((symbol, bounds),) = exported.range_constraints.items()
    # Of one row, a batch norm that trains knows no variance.
    assert (str(symbol)[0], int(bounds.lower)) == ("s", 2)
    exported.verifier(exported.program, exported._dialect)


def test_exporting_changes_nothing_around_it():
    module, x = Everything(), torch.ones(3, 4)
    before, generator = copy.deepcopy(module.state_dict()), torch.get_rng_state()
    export(module, (x,), FLAG)
    assert torch.equal(torch.get_rng_state(), generator)
    assert torch.equal(x, torch.ones(3, 4))
    torch.testing.assert_close(module.state_dict(), before)


def test_mutated_inputs_are_outputs():
    exported = export(Scale(in_place=True), (torch.ones(3),))
    kinds = [spec.kind for spec in exported.graph_signature.output_specs]
    assert kinds == [OutputKind.USER_INPUT_MUTATION, OutputKind.USER_OUTPUT]
    assert exported.graph_signature.user_inputs_to_mutate == {"add": "x"}


@pytest.mark.parametrize("size", [0, 1])
def test_example_sizes_0_and_1_do_not_freeze_a_dim(size):
    exported = export(Scale(), (torch.ones(size, 3),), dynamic_shapes=({0: Dim("batch")},))
    for batch in (0, 1, 2, 7):
        assert exported.module()(torch.ones(batch, 3)).shape == (batch, 3)


def test_strict_is_accepted():
    assert str(export(Scale(), (torch.ones(3),), strict=True)) == str(export(Scale(), (torch.ones(3),)))


def test_decompositions_on_the_way():
    table = {torch.ops.aten.relu.default: lambda x: x.clamp(min=0)}
    exported = export(torch.nn.ReLU(), (torch.ones(3),), decompositions=table)
    assert op_names(exported) == ["aten.clamp.default"]


def test_a_function_is_refused():
    with pytest.raises(InputTypeError, match="given an object of type function"):
        export(lambda x: x, (torch.ones(1),))


def test_script_objects_are_refused_by_name():
    layers = torch.nn.Sequential(torch.nn.Linear(4, 2))
    quantized = torch.ao.quantization.quantize_dynamic(layers, {torch.nn.Linear}, dtype=torch.qint8)
    with pytest.raises(ExportError, match=r"LinearPackedParamsBase: 0\._packed_params\._packed_params"):
        export(quantized, (torch.ones(3, 4),))


def test_calling_a_program_tells_how_to_run_it():
    with pytest.raises(ExportError, match=r"\.module\(\)"):
        everything()(torch.ones(3, 4))


def test_a_tensor_stored_in_an_attribute_is_refused():
    class Leaky(torch.nn.Module):
        def forward(self, x):
            self.last = x * 2
            return x

    with pytest.raises(StateMutationError, match="last"):
        export(Leaky(), (torch.ones(2),))


def test_values_that_only_running_gives_keep_their_ranges():
    def take(x, n):
        k = n.item()
        torch._check(k >= 2)
        torch._check(k <= x.shape[0])
        return x[:k]

    exported = export(Function(take), (torch.arange(6.0), torch.tensor(3)))
    (bounds,) = exported.range_constraints.values()
    assert (int(bounds.lower), int(bounds.upper)) == (2, 6)
    assert exported.module()(torch.arange(6.0), torch.tensor(4)).tolist() == [0, 1, 2, 3]
    with pytest.raises(RuntimeError, match="assertion"):
        exported.module()(torch.arange(6.0), torch.tensor(1))


def test_a_renamed_result_is_renamed_in_the_signature():
    signature = export(torch.nn.ReLU(), (torch.ones(2),)).graph_signature
    signature.replace_all_uses("relu", "renamed")
    assert signature.user_outputs == ("renamed",)


def test_generators_that_a_program_makes_are_refused():
    class Noise(torch.nn.Module):
        def forward(self, x):
            return x + torch.randn(3, generator=torch.Generator().manual_seed(0))

    with pytest.raises(ExportError, match=r"makes a .*Generator.* and uses it"):
        export(Noise(), (torch.ones(3),))


@pytest.mark.parametrize("change", [torch.Tensor.t_, lambda x: x.unsqueeze_(0), lambda x: x.resize_(2, 2)])
def test_writes_that_change_sizes_are_refused(change):
    def forward(x):
        change(x)
        return x + 1

    with pytest.raises(StateMutationError, match="changes the sizes of args_0 in place"):
        export(Function(forward), (torch.ones(4, 3),))
