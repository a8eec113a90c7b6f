"""The generated code under the address and undefined-behaviour sanitizers."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def runtime_library(name):
    return subprocess.run(
        ["g++", f"-print-file-name={name}"], capture_output=True, text=True, check=True
    ).stdout.strip()


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("every", [12, pytest.param(1, marks=pytest.mark.slow)])
def test_operators_are_clean(tmp_path, every):
    environment = os.environ | {
        "LD_PRELOAD": f"{runtime_library('libasan.so')}:{runtime_library('libubsan.so')}",
        "ASAN_OPTIONS": "detect_leaks=0",
        "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]),
    }
    command = [sys.executable, "-m", "tests.codegen.run_sanitized", str(tmp_path), str(every)]
    finished = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=ROOT, check=False)
    assert finished.stdout.startswith("clean:"), finished.stderr[-3000:]
