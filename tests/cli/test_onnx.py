"""``precast onnx``."""

import json
import os

import onnx
import pytest
from typer.testing import CliRunner

from precast import cli

MODEL = """
import torch
from precast.trace.capture import Dim

def make():
    model = torch.nn.Sequential(torch.nn.Linear(4, 2), torch.nn.ReLU())
    return model, (torch.ones(3, 4),), {}, ({0: Dim("batch")},)
"""


@pytest.fixture
def run(tmp_path, monkeypatch):
    (tmp_path / "models_for_onnx.py").write_text(MODEL)
    monkeypatch.chdir(tmp_path)
    return lambda *arguments: CliRunner().invoke(cli.app, ["onnx", *arguments])


def test_writes_a_file_and_tells_rules_and_checks(run):
    result = run("models_for_onnx.py:make", "-o", "model.onnx")
    assert result.exit_code == 0, result.output
    onnx.checker.check_model("model.onnx")
    assert "precast:linear" in result.stdout
    assert "checked: structure, example inputs, batch=4" in result.stdout


def test_summary_as_json(run):
    told = json.loads(run("models_for_onnx.py:make", "--json", "--opset", "18", "--external-data").stdout)
    assert told["file"] == "model.onnx"
    assert {"operator": "aten::relu", "rule": "precast:relu", "count": 1} in told["operators"]


def test_a_failure_is_told_and_leaves_no_file(run):
    result = run("models_for_onnx.py:make", "-o", "model.onnx", "--opset", "3")
    assert result.exit_code == 1
    assert "opset is 3" in result.output
    assert not os.path.exists("model.onnx")
