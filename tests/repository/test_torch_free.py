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


def test_an_import_that_needs_torch_is_seen():
    assert import_without_torch("torch.fx").returncode == 1
