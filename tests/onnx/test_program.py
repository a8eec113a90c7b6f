"""The exported model as an object, as torch's ``ONNXProgram`` is one; and the forms of a call that are ours alone."""

import io
import os
import subprocess
import sys
import warnings

import onnx
import pytest
import torch
import torch.onnx.testing
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

import precast
from precast.errors import CallMismatchError, InputTypeError, InputValueError, OptionError
from precast.onnx import ONNXProgram, export
from precast.trace.capture import Dim


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.full((4,), 3.0))

    def forward(self, x):
        return torch.relu(x * self.weight)


X = torch.tensor([[-1.0, 0.0, 1.0, 2.0]])


@pytest.fixture
def program() -> ONNXProgram:
    return export(Scaled(), (X,), dynamic_shapes=({0: "batch"},))


def test_a_call_returns_outputs_in_order():
    program = export(lambda x: {"a": x + 1, "b": [x * 2, None]}, (X,))
    first, second = program(X)
    torch.testing.assert_close((first, second), (X + 1, X * 2))
    assert program.call_as_model(X)["b"][1] is None


def test_torchs_own_check_takes_the_program(program):
    torch.onnx.testing.assert_onnx_program(program)
    torch.onnx.testing.assert_onnx_program(program, args=(torch.randn(3, 4),), backend="reference")


def test_inner_values_by_name(program):
    inner = next(iter(program.model.graph)).outputs[0].name
    values = program.compute_values([inner, "weight"], (X,))
    torch.testing.assert_close(values, (X * 3, torch.full((4,), 3.0)))
    with pytest.raises(InputValueError, match="no values called nothing"):
        program.compute_values(["nothing"], (X,))
    assert len(program.model.graph.outputs) == 1


def test_other_weights(program):
    program(X)
    program.apply_weights({"weight": torch.ones(4)})
    torch.testing.assert_close(program(X)[0], X.relu())
    with pytest.warns(UserWarning, match="no weights called other"):
        program.apply_weights({"other": torch.ones(4)})


def test_axes_get_other_names(program):
    program.rename_axes({program.model.graph.inputs[0].shape[0]: "rows"})
    assert str(program.model.graph.inputs[0].shape[0]) == "rows"
    assert str(program.model.graph.outputs[0].shape[0]) == "rows"
    program.rename_axes({"rows": "batch_size"})
    assert program.model_proto.graph.output[0].type.tensor_type.shape.dim[0].dim_param == "batch_size"


def test_axes_within_expressions_get_other_names():
    program = export(lambda x: torch.cat([x, x, x[:1]]), (torch.ones(3),), dynamic_shapes=({0: "n"},))
    program.rename_axes({"n": "rows"})
    assert str(program.model.graph.outputs[0].shape[0]) == "2*rows + 1"


def test_sessions_are_the_users(program):
    seen = []

    def opened(model):
        import onnxruntime

        seen.append(type(model))
        return onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])

    program.initialize_inference_session(opened)
    program(X)
    assert seen == [bytes]
    program.release()
    program(X)
    assert seen == [bytes]


def test_optimizing_later_is_optimizing_at_once():
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout()).eval()
    program = export(model, (X,), optimize=False)
    program.optimize()
    assert [node.op_type for node in program.model.graph] == [node.op_type for node in export(model, (X,)).model.graph]
    torch.testing.assert_close(program(X)[0], model(X).detach())


@pytest.mark.parametrize("included", [True, False])
@pytest.mark.parametrize("as_inputs", [True, False])
def test_weights_in_files_are_where_they_are_wanted(program, tmp_path, included, as_inputs):
    path = tmp_path / "model.onnx"
    program.save(path, include_initializers=included, keep_initializers_as_inputs=as_inputs)
    graph = onnx.load(path).graph
    assert [value.name for value in graph.input] == (["x", "weight"] if as_inputs else ["x"])
    assert [value.name for value in graph.initializer] == (["weight"] if included else [])
    torch.testing.assert_close(program(X)[0], Scaled()(X).detach())


def test_a_file_in_memory(program):
    file = io.BytesIO()
    export(Scaled(), (X,), file)
    onnx.checker.check_model(onnx.load_model_from_string(file.getvalue()))


def test_the_third_argument_is_the_file(tmp_path):
    export(Scaled(), (X,), tmp_path / "model.onnx", export_params=False, keep_initializers_as_inputs=True)
    graph = onnx.load(tmp_path / "model.onnx").graph
    assert not graph.initializer
    assert [value.name for value in graph.input] == ["x", "weight"]


def test_reports_and_programs_are_written_on_demand(tmp_path, capsys):
    folder = tmp_path / "artifacts"
    export(Scaled(), (X,), report=True, dump_exported_program=True, profile=True, verbose=True, artifacts_dir=folder)
    page, dumped = sorted(folder.iterdir(), key=lambda path: path.suffix)
    assert "aten::relu | precast:relu | 1" in page.read_text()
    torch.testing.assert_close(precast.load(dumped).module()(X), Scaled()(X))
    assert "[precast.onnx] translating" in capsys.readouterr().out


def test_keywords_that_mean_nothing_are_said_to(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        export(Scaled(), (X,), fallback=False, do_constant_folding=True, autograd_inlining=False)
    with pytest.warns(UserWarning, match="custom_opsets"):
        export(Scaled(), (X,), custom_opsets={"mine": 1})
    with pytest.raises(TypeError, match="unexpected keyword argument 'dynamic_shape'"):
        export(Scaled(), (X,), dynamic_shape=None)


def test_torchscript_is_refused():
    with pytest.raises(OptionError, match="TorchScript"):
        export(Scaled(), (X,), dynamo=False)
    with pytest.raises(InputTypeError, match="TorchScript"):
        export(torch.jit.script(Scaled()), (X,))


def test_an_exported_program_of_our_own(tmp_path):
    exported = precast.export(Scaled(), (X,), dynamic_shapes=({0: precast.Dim("batch")},))
    program = export(exported)
    assert "example inputs" in program.verification.checked
    torch.testing.assert_close(program(torch.ones(3, 4)), (torch.full((3, 4), 3.0),))
    precast.save(exported, tmp_path / "model.pt2")
    loaded = export(precast.load(tmp_path / "model.pt2"), (torch.ones(2, 4),))
    torch.testing.assert_close(loaded(torch.ones(3, 4)), (torch.full((3, 4), 3.0),))


def test_a_program_without_an_example_is_told_to_be_unchecked(tmp_path):
    precast.save(precast.export(Scaled(), (X,), dynamic_shapes=({0: precast.Dim("batch")},)), tmp_path / "model.pt2")
    program = export(precast.load(tmp_path / "model.pt2"))
    if program.exported_program.example_inputs is None:
        assert "no example inputs" in str(program.verification)
    torch.testing.assert_close(program(torch.ones(3, 4)), (torch.full((3, 4), 3.0),))


def test_fake_arguments_leave_the_numbers_unchecked():
    fake = FakeTensorMode().from_tensor(X)
    program = export(Scaled(), (fake,))
    assert "fake tensors" in str(program.verification)
    torch.testing.assert_close(program(X)[0], Scaled()(X).detach())


def test_a_model_made_of_fake_tensors_gets_its_weights_later():
    with FakeTensorMode():
        program = export(Scaled(), (torch.ones(1, 4),))
    program.apply_weights(Scaled().state_dict())
    torch.testing.assert_close(program(X)[0], Scaled()(X).detach())


def test_a_dict_that_is_an_argument_is_one():
    program = export(lambda x, extra: x + extra["a"], (X, {"a": X}))
    torch.testing.assert_close(program(X, {"a": X}), (2 * X,))


def test_axes_without_names_get_those_of_torch():
    program = export(Scaled(), (X,), input_names=["input"], dynamic_axes={"input": [0]})
    assert str(program.model.graph.inputs[0].shape[0]) == "input_dynamic_axes_1"


def test_axes_of_outputs_name_sizes_without_a_name():
    axes = {"out": {0: "found"}}
    program = export(lambda x: x[x > 0], (X,), output_names=["out"], dynamic_axes=axes)
    assert str(program.model.graph.outputs[0].shape[0]) == "found"


@pytest.mark.parametrize("axes", [{"z": {0: "n"}}, {"x": {"0": "n"}}, {"x": "n"}])
def test_axes_that_make_no_sense(axes):
    with pytest.raises((InputValueError, InputTypeError), match="dynamic_axes"):
        export(Scaled(), (X,), dynamic_axes=axes)


def test_what_the_program_allows_is_exported_in_place_of_what_was_declared():
    with pytest.warns(
        UserWarning, match=r"x\.shape\[1\] must be the constant 4.*exported with what the program allows"
    ):
        program = export(Scaled(), (X,), dynamic_shapes=({1: "width"},))
    assert list(program.model.graph.inputs[0].shape) == [1, 4]
    with pytest.warns(UserWarning, match=r"rows must be in 6\.\."):
        program = export(
            lambda x: x * 2 if x.shape[0] >= 6 else x, (torch.ones(8),), dynamic_shapes=({0: Dim("rows")},)
        )
    assert str(program.model.graph.inputs[0].shape) == "[rows]"
    with pytest.raises(CallMismatchError, match="rows in 6"):
        program(torch.ones(5))


def test_the_name_of_a_dim_goes_before_strings():
    described = ({0: "first"}, {0: Dim("rows")})
    with pytest.warns(UserWarning, match="# The axis name: first will not be used, since it shares .* axis: rows"):
        program = export(lambda x, y: x + y, (torch.ones(3), torch.ones(3)), dynamic_shapes=described)
    assert [str(value.shape) for value in program.model.graph.inputs] == ["[rows]", "[rows]"]


def test_float4_selects_an_opset_that_has_it():
    program = export(lambda: torch.empty([1], dtype=torch.float4_e2m1fn_x2), optimize=False)
    (output,) = program.model.graph.outputs
    assert (str(output.dtype), list(output.shape)) == ("FLOAT4E2M1", [2])
    assert program.model.opset_imports[""] == 23


def test_two_names_for_one_size_are_told():
    with pytest.warns(UserWarning, match="# The axis name: b will not be used"):
        export(lambda x, y: x + y, (torch.ones(3), torch.ones(3)), dynamic_shapes=({0: "a"}, {0: "b"}))


CHILD = """
import torch
from precast.onnx import export

class Model(torch.nn.Module):
    def forward(self, x):
        return x + 1 if torch.onnx.is_in_onnx_export() else x - 1

assert export(Model(), (torch.zeros(1),))(torch.zeros(1))[0].item() == 1
assert not torch.onnx.is_in_onnx_export()
assert Model()(torch.zeros(1)).item() == -1
"""


def test_models_know_that_they_are_exported():
    """In a process of its own, in which nobody has loaded torch's exporter before."""
    subprocess.run([sys.executable, "-c", CHILD], check=True, env=dict(os.environ))


def test_models_that_fail_are_no_longer_exported():
    def fail(x):
        assert torch.onnx.is_in_onnx_export()
        raise KeyError("planted")

    with pytest.raises(Exception, match="planted"):
        export(fail, (X,))
    assert not torch.onnx.is_in_onnx_export()
