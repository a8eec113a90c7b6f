"""The compiler of the tests compiles again whatever could have become something else."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.remembering_compiler import forget_old, put_first

COUNTING = '#!/bin/sh\necho run >> {log}\nexec {real} "$@"\n'


@pytest.fixture
def compiling(tmp_path, monkeypatch):
    """Compiles ``unit.cpp`` with a header beside it; returns how often the real compiler has run, and the object."""
    real = subprocess.run(["which", "g++"], capture_output=True, text=True, check=True).stdout.strip()
    (tmp_path / "real").mkdir()
    counting, log = tmp_path / "real" / "g++", tmp_path / "log"
    counting.write_text(COUNTING.format(log=log, real=real))
    counting.chmod(0o755)
    log.touch()
    monkeypatch.setenv("PATH", f"{counting.parent}{os.pathsep}{os.environ['PATH']}")
    (tmp_path / "objects").mkdir()
    put_first(str(tmp_path / "objects"))
    folders = iter(tmp_path / f"source{number}" for number in range(10))

    def run(unit="#include <unit.h>\nint one() { return VALUE; }", header="#define VALUE 1", flags=("-O0",)):
        folder = next(folders)
        folder.mkdir()
        (folder / "unit.h").write_text(header)
        (folder / "unit.cpp").write_text(unit)
        command = ["g++", *flags, f"-I{folder}", "-c", str(folder / "unit.cpp"), "-o", str(folder / "unit.o")]
        finished = subprocess.run(command, capture_output=True, check=False)
        made = folder / "unit.o"
        return len(log.read_text().splitlines()), made.read_bytes() if finished.returncode == 0 else None

    return run


def test_equal_units_are_compiled_once(compiling):
    first, again = compiling(), compiling()
    assert first == again
    assert first[0] == 1


@pytest.mark.parametrize(
    "change", [{"unit": "int two() { return 2; }"}, {"header": "#define VALUE 2"}, {"flags": ("-O0", "-g")}]
)
def test_another_text_header_or_flag_is_compiled_anew(compiling, change):
    before, after = compiling(), compiling(**change)
    assert after[0] == 2
    assert after[1] != before[1]


def test_a_unit_that_is_refused_is_refused_again(compiling):
    assert [compiling(unit="no C++") for _ in range(2)] == [(1, None), (2, None)]


def test_several_units_in_one_command_are_put_where_it_runs(compiling, tmp_path):
    for name in ("left", "right"):
        (tmp_path / f"{name}.cpp").write_text(f"int {name};")
    for folder in ("here", "there"):
        (tmp_path / folder).mkdir()
        command = ["g++", "-c", str(tmp_path / "left.cpp"), str(tmp_path / "right.cpp")]
        subprocess.run(command, check=True, cwd=tmp_path / folder)
        assert {path.name for path in (tmp_path / folder).iterdir()} == {"left.o", "right.o"}


def test_what_nobody_asked_for_in_a_while_is_forgotten(tmp_path: Path):
    (tmp_path / "kept").touch()
    forget_old(str(tmp_path), now=(tmp_path / "kept").stat().st_mtime + 1)
    assert (tmp_path / "kept").exists()
    forget_old(str(tmp_path), now=(tmp_path / "kept").stat().st_mtime + 30 * 86_400)
    assert not (tmp_path / "kept").exists()
