"""Every command that writes, in a folder that its user may not write, and without a cache."""

from pathlib import Path

import pytest

from tests.ordinary_user import run_as_ordinary_user

MODEL = """
import torch


def make():
    raise AssertionError("the model was made before the place to write to was looked at")
"""

WRITING = [
    "package model.py:make -o model.precast",
    "compile model.py:make",
    "export model.py:make -o model.pt2",
    "onnx model.py:make -o model.onnx",
    "report model.py:make -o report.html",
    "plan model.py:make --ranks 8 --bandwidth 50GB/s --plot plan.svg",
    "run any.precast -o results.npz",
    "train any.precast --data any.npz --steps 3 --curve loss.svg",
]


@pytest.fixture
def read_only(tmp_path):
    folder = tmp_path / "read only"
    folder.mkdir()
    (folder / "model.py").write_text(MODEL)
    for name in ("any.precast", "any.npz"):
        (folder / name).touch()
    folder.chmod(0o500)
    yield folder
    folder.chmod(0o700)


def test_commands_that_cannot_write_say_so_before_they_make_anything(read_only):
    code = f"""
from typer.testing import CliRunner
from precast.cli import app
for words in {WRITING!r}:
    result = CliRunner().invoke(app, words.split())
    print(result.exit_code, result.stderr.splitlines()[:1])
"""
    done = run_as_ordinary_user(code, read_only)
    lines = done.stdout.splitlines()
    assert len(lines) == len(WRITING), done.stdout + done.stderr
    for line in lines:
        assert line.startswith("1 ['error: ")
        assert line.endswith("cannot be written']")


def test_models_are_compiled_without_a_cache_and_a_warning_says_so(read_only):
    code = """
import torch
import precast
print(precast.compile(torch.nn.Linear(4, 3))(torch.ones(2, 4)).sum().backward())
"""
    done = run_as_ordinary_user(code, read_only, PRECAST_CACHE_DIR=str(read_only / "cache"))
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("going on without the cache") == 1
    assert "Permission denied" in done.stderr
    assert "Errno" not in done.stderr


def test_the_doctor_says_that_there_is_no_cache_and_that_models_can_be_compiled(read_only):
    code = "import sys; sys.argv = ['precast', 'doctor']; from precast.cli import main; main()"
    done = run_as_ordinary_user(code, read_only, PRECAST_CACHE_DIR=str(read_only / "cache"))
    row = next(line for line in done.stdout.splitlines() if line.startswith("cache folder"))
    assert row.split()[:5] == ["cache", "folder", "start", "fast", "slow"]
    assert done.returncode == 0


@pytest.mark.parametrize("name", ["there.precast", "not there.precast"])
def test_files_that_cannot_be_read_are_refused(tmp_path: Path, name: str):
    (tmp_path / "there.precast").write_bytes(b"any")
    (tmp_path / "there.precast").chmod(0o200)
    code = f"""
import precast.runtime
try:
    precast.runtime.load({name!r})
except precast.errors.PrecastError as problem:
    print(problem)
"""
    done = run_as_ordinary_user(code, tmp_path)
    assert done.stdout.startswith(f"{name} cannot be read"), done.stderr
