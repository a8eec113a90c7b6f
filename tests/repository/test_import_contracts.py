"""The contracts that ``lint-imports`` checks really forbid what they are there to forbid."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.repository.sources import ROOT

SKELETON = ["__init__", "__main__", "_version", "errors", "lazy_names", "options", "cli/__init__"]
SKELETON += [f"{folder}/__init__" for folder in ("native", "native/targets", "native/targets/cpu")]


def lint(folder: Path, files: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run our contracts on a package called precast that has just these files besides the obligatory ones."""
    for name, code in (dict.fromkeys(SKELETON, "") | files).items():
        path = folder / "precast" / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(code)
    program = Path(sys.executable).with_name("lint-imports")
    command = [program, "--no-cache", "--no-logo", "--config", ROOT / "pyproject.toml"]
    return subprocess.run(command, cwd=folder, env={"PYTHONPATH": str(folder)}, capture_output=True, text=True)


def test_imports_that_point_down_are_kept(tmp_path):
    result = lint(tmp_path, {"trace/__init__": "import precast.graph", "graph/__init__": "import torch"})
    assert result.returncode == 0, result.stdout


@pytest.mark.parametrize(
    ("importer", "imported"),
    [
        ("graph/__init__", "precast.trace"),
        ("trace/__init__", "precast.partition"),
        ("runtime/__init__", "precast.graph"),
        ("artifact/__init__", "precast.runtime"),
        ("runtime/load", "torch"),
        ("artifact/archive", "torch.nn"),
        ("native/__init__", "functorch"),
    ],
)
def test_a_wrong_import_is_refused(tmp_path, importer, imported):
    folders = {f"{name}/__init__": "" for name in ["trace", "partition", "native", "graph", "runtime", "artifact"]}
    result = lint(tmp_path, folders | {importer: f"import {imported}"})
    assert result.returncode == 1
    assert f"is not allowed to import {imported.removesuffix('.nn')}" in result.stdout


@pytest.mark.parametrize(("importer", "code"), [("native/targets/__init__", 0), ("native/driver", 1), ("api", 1)])
def test_only_the_table_of_targets_imports_one(tmp_path, importer, code):
    result = lint(tmp_path, {importer: "def later():\n    import precast.native.targets.cpu"})
    assert result.returncode == code, result.stdout


def test_a_module_without_a_layer_is_refused(tmp_path):
    result = lint(tmp_path, {"miscellany": ""})
    assert result.returncode == 1
    assert "miscellany" in result.stdout
