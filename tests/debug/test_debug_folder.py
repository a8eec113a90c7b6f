"""debug_compile leaves behind what is needed to run and minify a graph later."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from precast.compilers import debug_compile, load_inputs


@pytest.fixture(autouse=True)
def temporary_folders(monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


def folder_told(printed):
    return Path(re.search(r"^folder = '(.*)'$", printed, flags=re.MULTILINE)[1])


def test_result_is_that_of_eager(trace):
    graph_module, fakes = trace(lambda x: x.sin() * 2, torch.ones(3))
    x = torch.randn(3)
    torch.testing.assert_close(debug_compile(graph_module, fakes)(x), x.sin() * 2, rtol=0, atol=0)


def test_what_the_graph_raises_is_raised(trace):
    graph_module, fakes = trace(lambda x: x.view(3), torch.ones(3))
    with pytest.raises(RuntimeError, match="shape"):
        debug_compile(graph_module, fakes)(torch.ones(4))


def test_real_example_inputs_are_run_at_once(trace):
    graph_module, _ = trace(lambda x: x.view(3), torch.ones(3))
    with pytest.raises(RuntimeError, match="shape"):
        debug_compile(graph_module, [torch.ones(4)])


def test_inputs_of_the_last_call_are_kept(trace, capsys):
    graph_module, fakes = trace(lambda x: x.view(3), torch.ones(3))
    with pytest.raises(RuntimeError, match="shape"):
        debug_compile(graph_module, fakes)(torch.arange(4.0))
    (kept,) = load_inputs(folder_told(capsys.readouterr().out))
    assert torch.equal(kept, torch.arange(4.0))


def test_printed_script_minifies(trace, capsys, tmp_path):
    graph_module, fakes = trace(lambda x: x.sin().cos().view(3).exp(), torch.ones(3))
    with pytest.raises(RuntimeError, match="shape"):
        debug_compile(graph_module, fakes)(torch.arange(4.0))
    (tmp_path / "minify.py").write_text(capsys.readouterr().out)
    done = subprocess.run(
        [sys.executable, tmp_path / "minify.py"], check=True, capture_output=True, text=True, cwd=tmp_path
    )
    assert "# 4 operations became 1" in done.stdout
    assert "torch.ops.aten.view.default" in done.stdout
