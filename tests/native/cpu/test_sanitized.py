"""The generated code under the address and undefined-behaviour sanitizers."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.native.cpu.sanitizers import environment

ROOT = Path(__file__).parents[3]


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_operators_are_clean(tmp_path):
    surroundings = os.environ | environment() | {"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
    command = [sys.executable, "-m", "tests.native.cpu.run_sanitized", str(tmp_path)]
    finished = subprocess.run(command, capture_output=True, text=True, env=surroundings, cwd=ROOT, check=False)
    assert finished.stdout.startswith("clean:"), finished.stderr[-3000:]
