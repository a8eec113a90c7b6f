"""``precast export`` and ``precast inspect``."""

import json
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from precast import cli
from precast.export import load

MODEL = """
import torch
from precast.export import Dim

def make():
    model = torch.nn.Sequential(torch.nn.Linear(4, 2), torch.nn.ReLU())
    return model, (torch.ones(3, 4),), {}, ({0: Dim("batch")},)

def loss():
    class Loss(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(4))
        def forward(self, x):
            return (x * self.weight).sum()
    return Loss(), (torch.ones(4),)

def three():
    return 3

def no_tuple():
    return torch.nn.Linear(4, 2), torch.ones(3, 4)

def needs_a_width(width):
    return torch.nn.Linear(4, width), (torch.ones(3, 4),)

number = 5
model = torch.nn.Linear(4, 2)
"""


@pytest.fixture
def run(tmp_path, monkeypatch):
    (tmp_path / "models_for_export.py").write_text(MODEL)
    monkeypatch.chdir(tmp_path)
    yield lambda *arguments: CliRunner().invoke(cli.app, arguments)
    sys.modules.pop("models_for_export", None)


@pytest.mark.parametrize("reference", ["models_for_export.py:make", "models_for_export:make"])
def test_a_model_by_file_or_by_module(run, reference, tmp_path):
    result = run("export", reference, "-o", "model.pt2")
    assert result.exit_code == 0, result.output
    assert "model.pt2: 2 nodes" in result.output
    assert load(tmp_path / "model.pt2").dialect == "TRAINING"


def test_decomposed_and_with_gradients(run, tmp_path):
    assert run("export", "models_for_export.py:make", "-o", "a.pt2", "--decompose").exit_code == 0
    assert load(tmp_path / "a.pt2").dialect == "ATEN"
    result = run("export", "models_for_export.py:loss", "-o", "b.pt2", "--loss", "0", "--json")
    assert json.loads(result.stdout)["dialect"] == "ATEN"
    assert load(tmp_path / "b.pt2").graph_signature.backward_signature is not None


def test_inspecting(run):
    run("export", "models_for_export.py:make", "-o", "model.pt2")
    table = run("inspect", "model.pt2")
    assert "input_1: f32[" in table.stdout
    summary = json.loads(run("inspect", "model.pt2", "--json").stdout)
    assert (summary["parameters"], summary["state bytes"]) == (2, 40)
    assert run("inspect", "model.pt2", "--graph").stdout.startswith("ExportedProgram:")
    missing = run("inspect", "model.pt2", "--extra-file", "notes.txt")
    assert (missing.exit_code, "no extra file" in missing.stderr) == (3, True)


@pytest.mark.parametrize(
    ("reference", "told"),
    [
        ("models_for_export.py", "does not name a model"),
        ("nowhere.py:make", "does not exist"),
        ("nowhere.at.all:make", "cannot be imported"),
        ("models_for_export.py:nothing", "does not name a function"),
        ("models_for_export.py:number", "does not name a function"),
        ("models_for_export.py:mak", "fix: Did you mean 'make'?"),
        ("models_for_export.py:model", "'model' is of type Linear"),
        ("models_for_export.py:three", "returned an object of type int"),
        ("models_for_export.py:no_tuple", "returned example arguments of type Tensor, not a tuple"),
        ("models_for_export.py:needs_a_width", "cannot be called without arguments"),
        ("broken.py:make", "broken.py cannot be imported: ZeroDivisionError"),
        ("unreadable.py:make", "unreadable.py:2\n"),
    ],
)
def test_references_that_name_no_model(run, tmp_path, reference, told):
    (tmp_path / "broken.py").write_text("1 / 0")
    (tmp_path / "unreadable.py").write_text("import torch\ndef make(:\n")
    result = run("export", reference)
    assert result.exit_code == 1
    assert told in result.stderr


def test_a_folder_that_is_not_there_is_told_before_anything_is_done(run):
    result = run("export", "models_for_export.py:make", "-o", "nowhere/model.pt2")
    assert result.exit_code == 1
    assert "No such file or directory" in result.stderr
    assert "(nowhere)" in result.stderr or "/nowhere)" in result.stderr


def test_inspecting_what_is_no_program(run):
    result = run("inspect", "models_for_export.py")
    assert (result.exit_code, "not a Precast archive" in result.stderr) == (3, True)


def test_as_a_process(run, tmp_path):
    command = [sys.executable, "-m", "precast", "export", "models_for_export.py:make"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    assert (tmp_path / "program.pt2").exists()
