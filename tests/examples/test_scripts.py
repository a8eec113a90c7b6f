"""Examples that are scripts run to their end; the notebook runs from top to bottom."""

import os
import subprocess
import sys

import pytest

from tests.repository.sources import ROOT

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("command", "told"),
    [
        (["train/resume.py"], "the same parameters"),
        (["generate/bytes.py", "--steps", "3", "--tokens", "5"], "without torch:"),
    ],
    ids=lambda each: each[0] if isinstance(each, list) else "",
)
def test_a_script_runs(command, told, tmp_path):
    script, *options = command
    words = [sys.executable, ROOT / "examples" / script, *options]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert told in done.stdout


def test_the_notebook_runs(tmp_path, monkeypatch):
    nbformat = pytest.importorskip("nbformat", reason="pip install '.[examples]'")
    nbclient = pytest.importorskip("nbclient", reason="pip install '.[examples]'")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]))
    notebook = nbformat.read(ROOT / "examples" / "notebook" / "tour.ipynb", as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells), "results are not committed"
    nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
