"""Torch is an extra: what only runs compiled files must do without it."""

import subprocess
import sys

import pytest

from tests.repository.sources import PACKAGE


def run_python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)


def test_importing_precast_does_not_import_torch():
    result = run_python("import sys, precast; sys.exit('torch' in sys.modules)")
    assert result.returncode == 0, result.stderr


def import_without_torch(name: str) -> subprocess.CompletedProcess[str]:
    return run_python(f"import sys; sys.modules['torch'] = None; import {name}")


@pytest.mark.parametrize("name", ["artifact", "cli", "errors", "options", "runtime"])
def test_imports_where_torch_is_absent(name):
    if not list(PACKAGE.glob(f"{name}*")):
        pytest.skip(f"there is no precast.{name} yet")
    result = import_without_torch(f"precast.{name}")
    assert result.returncode == 0, result.stderr


COMMAND = "sys.argv[1:] = [{!r}, 'm.py:f']; from precast.cli import main; main()"


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("import precast; precast.compile", "precast.compile needs torch"),
        ("from precast import onnx", "precast.onnx needs torch"),
        (COMMAND.format("explain"), "This command needs torch"),
        (COMMAND.format("bench"), "This command needs torch"),
    ],
)
def test_what_needs_torch_names_the_extra(code, told):
    result = run_python(f"import sys; sys.modules['torch'] = None; {code}")
    assert result.returncode == 1
    assert told in result.stderr
    assert "pip install 'precast[torch]'" in result.stderr


def test_an_import_that_needs_torch_is_seen():
    assert import_without_torch("torch.fx").returncode == 1
