"""The code of the guide on backends does what it says."""

import re

import pytest
import torch

import precast
from precast import backend as registry
from precast.compilers import get_backend
from tests.repository.sources import ROOT

GUIDE = ROOT / "docs" / "guides" / "add-a-backend.md"


@pytest.fixture
def names(monkeypatch, tmp_path):
    """What the code of the guide defines, run as it is written, from top to bottom."""
    monkeypatch.setattr(registry, "_registered", {})
    monkeypatch.setenv("PRECAST_CACHE_DIR", str(tmp_path))
    defined = {"__name__": "my_package"}
    for block in re.findall(r"^```python\n(.*?)^```$", GUIDE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL):
        exec(compile(block, GUIDE, "exec"), defined)
    return defined


def step(function):
    x = torch.linspace(-1, 1, 6).view(2, 3).requires_grad_()
    result = function(x)
    result.sum().backward()
    return result, x.grad


@pytest.mark.parametrize("name", ["mine", "source", "mixed"])
def test_each_backend_computes_values_and_gradients(names, name):
    compiled = precast.compile(names["model"], backend=name)
    torch.testing.assert_close(step(compiled), step(names["model"]))


def test_the_complete_one_is_restored_from_disk(names, monkeypatch):
    expected = step(precast.compile(names["model"], backend="source"))
    monkeypatch.setattr(names["SourceCompiler"], "__call__", None)
    torch.testing.assert_close(step(precast.compile(names["model"], backend="source")), expected)


def test_the_complete_one_is_described_and_takes_options(names):
    backend = get_backend("source")
    assert backend.description == "The graph as one Python function."
    options = precast.Options(cache_bytes=0)
    assert backend.fw_compiler.with_options(options).options is options


def test_every_member_of_a_compiler_is_told_of():
    told = GUIDE.read_text(encoding="utf-8")
    members = {name for name in vars(precast.Compiler) if not name.startswith("_")} - {"defines", "qualified_name"}
    assert {name for name in members if f"`{name}" not in told} == set()
