"""People meet their own names: in loaded models, from C, in errors, in printed programs and in ONNX files."""

import numpy as np
import pytest
import torch

import precast
import precast.runtime
from precast.errors import InputTypeError


class Classifier(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(4, 3)

    def forward(self, features, options):
        options["seen"].add_(1)
        logits = self.inner(features)
        return {"logits": logits, "top": logits.max(1)}


SHAPES = {"features": {0: "batch"}, "options": {"seen": {0: precast.Dim.AUTO}}}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("names") / "model.precast"
    arguments = (torch.ones(5, 4), {"seen": torch.zeros(7)})
    precast.package(Classifier(), arguments, path=path, dynamic_shapes=SHAPES)
    return precast.runtime.load(path)


def test_inputs_outputs_and_sizes_have_the_users_names(model):
    described = model["forward"].description
    assert list(map(str, described.inputs)) == ["features: f32[batch, 4]", "options_seen: f32[options_seen_dim_0]"]
    assert [each.name for each in described.outputs] == ["options_seen_updated", "logits", "top_0", "top_1"]
    assert str(described.outputs[1]) == "logits: f32[batch, 3]"


def test_a_loaded_model_shows_its_entries_inputs_and_sizes(model):
    text = repr(model)
    assert "forward(features: f32[batch, 4], options_seen: f32[options_seen_dim_0]) -> " in text
    assert "logits: f32[batch, 3]" in text
    assert "batch in 0.." in text
    assert "target native, 2 tensors of state" in text


def test_errors_name_arguments(model):
    with pytest.raises(ValueError, match=r"options\['seen'\] is float64, but the program was captured with float32"):
        model(np.zeros((2, 4), np.float32), {"seen": np.zeros(3)})


@pytest.mark.parametrize(
    ("function", "names"),
    [
        (lambda x: x + 1, ["output"]),
        (lambda x: (x + 1, [x + 2]), ["output_0", "output_1_0"]),
        (lambda x: {"output": x + 1, "x": x}, ["output", "x"]),
        (lambda x: {"a_b": x + 1, "a": {"b": x}}, ["a_b", "a_b_1"]),
    ],
)
def test_the_library_tells_callers_in_c_the_same_names(function, names, tmp_path):
    path = precast.aot_compile(function, (torch.ones(2),), options={"output_path": tmp_path / "model.so"})
    described = precast.aot_load(path)["forward"].description  # what precast_entry_json says
    assert [each.name for each in described.inputs] == ["x"]
    assert [each.name for each in described.outputs] == names


def test_printed_programs_show_named_sizes():
    exported = precast.export.export(torch.nn.Linear(4, 3), (torch.ones(5, 4),), dynamic_shapes={"input": {0: "batch"}})
    assert "f32[batch, 3]" in str(exported)
    assert "batch in 0.." in str(exported)


def test_axes_without_a_name_are_named_after_their_input():
    pytest.importorskip("onnx_ir")
    program = precast.onnx.export(torch.nn.ReLU(), (torch.ones(5, 4),), dynamic_shapes=({0: precast.Dim.AUTO},))
    assert str(program.model.graph.inputs[0].shape[0]) == "input_dim_0"


@pytest.mark.parametrize("make", [precast.package, precast.aot_compile])
def test_a_bare_tensor_as_arguments_is_refused_with_the_way_to_write_it(make, tmp_path):
    more = {"path": tmp_path / "model.precast"} if make is precast.package else {}
    with pytest.raises(InputTypeError, match=r"are a Tensor(.|\n)*Write \(x,\)"):
        make(torch.nn.ReLU(), torch.ones(5, 4), **more)
