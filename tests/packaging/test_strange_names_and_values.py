"""Names and constants that people rarely use, and disks that are full: packaged all the same, or an error of ours."""

import errno
import os

import pytest
import torch
from typer.testing import CliRunner

import precast
import precast.runtime
from precast.artifact.package import write_package
from precast.artifact.weights import Weight
from precast.cli.inspect import app
from precast.errors import FileWriteError, InputValueError

NAN = float("nan")


class Strange(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.add_module("🙂", torch.nn.Linear(2, 2))
        self.register_buffer('é[/x]"?', torch.ones(2))

    def forward(self, x):
        return {"🙂": self._modules["🙂"](x) * self._buffers['é[/x]"?']}


def test_names_may_have_any_letters(tmp_path):
    module, x = Strange(), torch.randn(1, 2)
    path = precast.package(module, (x,), path=tmp_path / "model.precast")
    model = precast.runtime.load(path)
    torch.testing.assert_close(model(x)["🙂"], module(x)["🙂"])
    assert "🙂.weight" in model.state
    model.verify()
    library = precast.aot_compile(module, (x,), options={"output_path": tmp_path / "model.so"})
    torch.testing.assert_close(precast.aot_load(library)(x)["🙂"], module(x)["🙂"])


def test_names_in_a_file_are_no_markup(tmp_path):
    entry = {"interface": {"name": "[/x]🙂", "inputs": [], "weights": [], "outputs": [], "updates": [], "sizes": []},
             "call": None, "program": None, "state_names": {}, "samples": []}  # fmt: skip
    strange = write_package(tmp_path / "strange.precast", entries=[entry], code={}, weights={})
    shown = CliRunner().invoke(app, [str(strange)])
    assert shown.exit_code == 0, shown.output
    assert "[/x]" in shown.output


@pytest.mark.parametrize("constant", [NAN, complex(NAN, 1), complex(1, NAN), complex(float("inf"), -0.0), 1.5, -0.0])
def test_constants_are_themselves_and_no_other(tmp_path, constant):
    def scaled(x, number):
        return x * 2

    model = precast.runtime.load(precast.package(scaled, (torch.ones(2), constant), path=tmp_path / "m.precast"))
    assert model(torch.ones(2), constant).tolist() == [2, 2]
    for other in (NAN, 0.0, 2.5, complex(NAN, 2), complex(2, NAN)):
        if repr(other) != repr(constant):
            with pytest.raises(InputValueError, match="captured with"):
                model(torch.ones(2), other)


def test_a_disk_that_is_full_is_told_and_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "model.precast"
    path.write_bytes(b"old")

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(FileWriteError, match="No space left"):
        write_package(path, entries=[], code={}, weights={"w": Weight("f32", torch.ones(2).numpy())})
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["model.precast"]


def test_a_folder_that_is_not_there_is_told(tmp_path):
    with pytest.raises(FileWriteError, match="cannot be written"):
        precast.save(precast.export(torch.nn.ReLU(), (torch.ones(2),)), tmp_path / "no" / "program.pt2")
