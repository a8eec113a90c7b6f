import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from precast.cli import app, doctor
from precast.cli.doctor import Finding

HAS_PYTHON = Finding("Python", True, "3.11", "run", "install Python")
LACKS_COMPILER = Finding("C++ compiler", False, "no [g++]", "compile", "install g++")
LACKS_VECTORS = Finding("processor", False, "sse", "run fast", "buy one")


@pytest.fixture
def run(monkeypatch):
    def run_on_machine(findings, *arguments):
        monkeypatch.setattr(doctor, "examine", lambda options: findings)
        return CliRunner().invoke(app, ["doctor", *arguments])

    return run_on_machine


def test_this_very_machine_is_examined():
    result = CliRunner().invoke(app, ["doctor", "--json"])
    names = {finding["name"] for finding in json.loads(result.stdout)["findings"]}
    assert names >= {"Python", "oneDNN", "torch", "oneDNN headers", "C++ compiler", "cache folder", "processor"}
    assert names >= {"LAPACK", "cryptography", "ONNX", "GPU and driver", "cuBLASLt", "cuDNN", "Triton"}


def test_paths_of_what_is_found_are_told():
    findings = json.loads(CliRunner().invoke(app, ["doctor", "--json"]).stdout)["findings"]
    found = {finding["name"]: finding["found"] for finding in findings if finding["ok"]}
    assert Path(found["oneDNN"]).is_file()
    assert Path(found["C++ compiler"].rpartition(", ")[2]).is_file()


def test_a_lapack_is_found_by_its_path_or_by_the_linker(tmp_path):
    library = tmp_path / "libmine.so"
    assert not doctor.examine_lapack([str(library), "libsurely_not_there.so.3"], "get one").ok
    library.touch()
    assert doctor.examine_lapack([str(library)], "get one").found == str(library)
    assert doctor.examine_lapack(["libc.so.6"], "get one").ok


def test_a_complete_machine_is_healthy(run):
    result = run([HAS_PYTHON])
    assert result.exit_code == 0
    assert "install Python" not in result.stdout


def test_what_is_missing_is_named_with_its_remedy(run):
    result = run([HAS_PYTHON, LACKS_COMPILER])
    assert result.exit_code == 1
    row = next(line for line in result.stdout.splitlines() if line.startswith("C++ compiler"))
    assert row.split() == ["C++", "compiler", "compile", "missing", "no", "[g++]:", "install", "g++"]


def test_a_slow_processor_is_told_but_no_failure(run):
    result = run([LACKS_VECTORS])
    assert result.exit_code == 0
    assert "slow" in result.stdout
    assert "buy one" in result.stdout


def test_running_needs_no_compiler(run):
    assert run([HAS_PYTHON, LACKS_COMPILER], "--run-only").exit_code == 0


def test_json_tells_the_same(run):
    result = run([LACKS_COMPILER], "--json")
    assert result.exit_code == 1
    assert json.loads(result.stdout) == {
        "ok": False,
        "findings": [
            {
                "name": "C++ compiler",
                "ok": False,
                "found": "no [g++]",
                "needed_to": "compile",
                "fix": "install g++",
            }
        ],
    }
