"""``precast explain``."""

import json

import pytest
from typer.testing import CliRunner

from precast.cli import app

_MODULE = """
import torch

def linear():
    return torch.nn.Linear(2, 3), (torch.ones(1, 2),)

def with_keywords():
    return torch.add, (torch.ones(2),), {"other": torch.ones(2)}

def wrong():
    return torch.nn.Linear(2, 3)
"""


@pytest.fixture
def run(tmp_path, monkeypatch):
    (tmp_path / "explained_models.py").write_text(_MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PRECAST_CACHE_DIR", str(tmp_path / "cache"))
    return lambda *arguments: CliRunner().invoke(app, ["explain", *arguments])


def test_it_prints_every_graph(run):
    result = run("explained_models:linear")
    assert result.exit_code == 0, result.output
    assert "forward graph" in result.stdout
    assert "backward graph" in result.stdout


def test_keywords_are_passed(run):
    assert "kernel" in run("explained_models:with_keywords").stdout


def test_json_tells_the_same(run):
    (graph,) = json.loads(run("explained_models:linear", "--inference", "--json").stdout)
    assert graph["graph"] == "inference"
    assert "library" in {step["kind"] for step in graph["steps"]}


def test_a_profile_as_table_as_json_and_as_trace(run, tmp_path):
    result = run("explained_models:linear", "--profile", "--calls", "2", "--trace", "trace.json")
    assert result.exit_code == 0, result.output
    assert "the best of 2 calls" in result.stdout
    assert json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    data = json.loads(run("explained_models:linear", "--profile", "--inference", "--calls", "1", "--json").stdout)
    assert all(step["operators"] == ["addmm"] for step in data["steps"])


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("explained_models", "does not name a model"),
        ("explained_models:nothing", "does not name a function"),
        ("no_such_module:f", "cannot be imported"),
        ("explained_models:wrong", "returned an object of type Linear"),
    ],
)
def test_what_cannot_be_explained_is_told(run, name, message):
    result = run(name)
    assert result.exit_code == 1
    assert message in result.output
