"""Models on disk: readable by onnx, complete or absent, with the weights beside them on demand."""

import os

import onnx
import pytest
import torch
from torch import nn

from precast.errors import OnnxError, OptionError
from precast.onnx import export, session
from precast.onnx import program as save


@pytest.fixture
def program():
    return export(nn.Linear(64, 64).eval(), (torch.ones(1, 64),))


def run(path, x: torch.Tensor) -> torch.Tensor:
    runtime = session.import_onnxruntime().InferenceSession(path)
    return torch.from_numpy(runtime.run(None, {runtime.get_inputs()[0].name: x.numpy()})[0])


def test_saved_model_runs(program, tmp_path):
    program.save(tmp_path / "model.onnx")
    assert os.listdir(tmp_path) == ["model.onnx"]
    torch.testing.assert_close(
        run(tmp_path / "model.onnx", torch.ones(1, 64)), program.call_as_model(torch.ones(1, 64))
    )


def test_export_saves_where_it_is_told(tmp_path):
    export(torch.sin, (torch.ones(2),), path=tmp_path / "sin.onnx")
    onnx.checker.check_model(tmp_path / "sin.onnx")


def test_weights_beside_the_file_have_a_relative_name(program, tmp_path):
    program.save(tmp_path / "model.onnx", external_data=True)
    assert sorted(os.listdir(tmp_path)) == ["model.onnx", "model.onnx.data"]
    proto = onnx.load(tmp_path / "model.onnx", load_external_data=False)
    (weight,) = [tensor for tensor in proto.graph.initializer if len(tensor.dims) == 2]
    assert {entry.key: entry.value for entry in weight.external_data}["location"] == "model.onnx.data"
    torch.testing.assert_close(
        run(tmp_path / "model.onnx", torch.ones(1, 64)), program.call_as_model(torch.ones(1, 64))
    )


@pytest.fixture
def small_limit(monkeypatch):
    """As if one file could not hold these weights."""
    monkeypatch.setattr(save, "IN_MEMORY_LIMIT", 1000)
    monkeypatch.setattr(session, "IN_MEMORY_LIMIT", 1000)
    monkeypatch.setattr("precast.onnx.program.IN_MEMORY_LIMIT", 1000)


def test_large_models_put_weights_beside_the_file_unasked(small_limit, program, tmp_path):
    program.save(tmp_path / "model.onnx")
    assert sorted(os.listdir(tmp_path)) == ["model.onnx", "model.onnx.data"]


def test_large_models_run(small_limit, program):
    assert program.call_as_model(torch.ones(1, 64)).shape == (1, 64)


def test_large_models_do_not_fit_into_one_file(small_limit, program, tmp_path):
    with pytest.raises(OnnxError, match="too much for one file"):
        program.save(tmp_path / "model.onnx", external_data=False)
    with pytest.raises(OnnxError, match="too large for one protobuf"):
        _ = program.model_proto


def test_a_crash_leaves_the_old_file(program, tmp_path, monkeypatch):
    path = tmp_path / "model.onnx"
    path.write_bytes(b"old")

    def crash(*_: object) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(os, "replace", crash)
    with pytest.raises(OnnxError, match="no space left"):
        program.save(path)
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["model.onnx"]


def test_unknown_way_to_store(program, tmp_path):
    with pytest.raises(OptionError, match="external_data is 'beside'"):
        program.save(tmp_path / "model.onnx", external_data="beside")


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.bool])
def test_weights_of_every_kind_keep_their_bits(dtype: torch.dtype):
    class Holder(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("weight", torch.randn(3, 2).to(dtype).t())

        def forward(self, x):
            return x + self.weight.float()

    model = Holder()
    program = export(model, (torch.ones(2, 3),), optimize=False)
    (tensor,) = program.model_proto.graph.initializer
    assert tensor.raw_data == model.weight.contiguous().view(torch.uint8).numpy().tobytes()


def constant_program(value: float):
    layer = nn.Linear(64, 64).eval()
    nn.init.constant_(layer.weight, value)
    nn.init.zeros_(layer.bias)
    return export(layer, (torch.ones(1, 64),))


def test_a_model_never_lies_beside_the_data_of_another(tmp_path, monkeypatch):
    """Whichever move a writer is killed at, what is there is the old model or the new one."""
    path, x = tmp_path / "model.onnx", torch.ones(1, 64)
    old, new = constant_program(1.0), constant_program(2.0)
    moved = os.replace
    seen = []

    def move_and_look(source, target):
        moved(source, target)
        if path.exists():
            seen.append(float(run(path, x)[0, 0]))

    old.save(path, external_data=True)
    monkeypatch.setattr(os, "replace", move_and_look)
    new.save(path, external_data=True)
    assert seen == sorted(seen)
    assert set(seen) == {64.0, 128.0}
    assert float(run(path, x)[0, 0]) == 128.0
    assert sorted(os.listdir(tmp_path)) == ["model.onnx", "model.onnx.data"]
