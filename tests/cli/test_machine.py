import shutil
import sys

import pytest

from precast.cli import doctor as machine
from precast.options import Options


@pytest.mark.parametrize(("version", "ok"), [((3, 10, 14), False), ((3, 11, 0), True), ((4, 0, 0), True)])
def test_python_must_be_new_enough(version, ok):
    assert machine.examine_python(version).ok is ok


@pytest.mark.parametrize(("version", "ok"), [(None, False), ("2.9.1", False), ("2.11.0+cu130", True), ("3.0.0", True)])
def test_torch_must_be_there_and_new_enough(version, ok):
    assert machine.examine_torch(version).ok is ok


def test_a_package_that_is_not_installed_has_no_version():
    assert machine._installed_version("no-such-package") is None


def test_onednn_is_found_by_its_library(tmp_path):
    assert not machine.examine_onednn(tmp_path).ok
    (tmp_path / "libdnnl.so.3").touch()
    (tmp_path / "libdnnl.so.3.2").touch()
    assert machine.examine_onednn(tmp_path).found == str(tmp_path / "libdnnl.so.3")


def test_a_compiler_is_asked_for_its_version_and_tried():
    finding = machine.examine_compiler("g++")
    assert finding.ok
    assert finding.found.startswith("g++")


def test_any_compiler_that_would_be_used_is_found(tmp_path, monkeypatch):
    (tmp_path / "clang++").symlink_to(shutil.which("g++"))
    monkeypatch.setenv("PATH", str(tmp_path))
    findings = {each.name: each for each in machine.examine(Options())}
    assert "no g++" not in findings["C++ compiler"].found


def test_a_compiler_that_builds_nothing_is_missing():
    finding = machine.examine_compiler(sys.executable)
    assert finding.is_fatal
    assert "no" not in finding.found[:3]


def test_headers_of_onednn_are_looked_for(tmp_path):
    assert machine.examine_onednn_headers(tmp_path).is_fatal
    (tmp_path / "dnnl.h").touch()
    assert machine.examine_onednn_headers(tmp_path).ok


@pytest.mark.parametrize("command", ["no-such-compiler", "false"])
def test_a_compiler_that_is_absent_or_fails_is_missing(command):
    finding = machine.examine_compiler(command)
    assert finding.is_fatal
    assert finding.found == f"no {command}"


def test_a_cache_folder_may_be_made_later(tmp_path):
    assert machine.examine_cache(tmp_path / "not" / "yet").ok


def test_a_cache_folder_below_a_file_is_useless(tmp_path):
    (tmp_path / "file").touch()
    finding = machine.examine_cache(tmp_path / "file" / "cache")
    assert not finding.ok
    assert not finding.is_fatal, "models are compiled without it"


def test_a_cache_folder_that_may_not_be_written_is_useless(tmp_path, monkeypatch):
    monkeypatch.setattr(machine.os, "access", lambda path, mode: False)
    assert not machine.examine_cache(tmp_path).ok


def test_a_cache_folder_that_others_can_write_is_refused_with_the_remedy(tmp_path):
    tmp_path.chmod(0o777)
    finding = machine.examine_cache(tmp_path)
    assert not finding.ok
    assert finding.fix.startswith("chmod go-w")


def test_the_features_of_the_processor_are_told(tmp_path):
    facts = tmp_path / "cpuinfo"
    facts.write_text("model name : any\nflags\t\t: fpu avx2 fma avx512f\nflags\t\t: fpu\n")
    finding = machine.examine_processor(facts)
    assert finding.ok
    assert finding.found == "avx2 fma avx512f"


def test_the_level_that_packages_are_made_for_is_told(tmp_path):
    facts = tmp_path / "cpuinfo"
    facts.write_text(f"flags : {' '.join(machine.LEVELS['x86-64-v3'])}\n")
    assert machine.examine_processor(facts).found.startswith("x86-64-v3 avx2")


def test_a_processor_without_vectors_is_slow_but_not_fatal(tmp_path):
    facts = tmp_path / "cpuinfo"
    facts.write_text("flags : fpu avx2\n")
    finding = machine.examine_processor(facts)
    assert not finding.ok
    assert not finding.is_fatal


def test_a_system_may_tell_nothing_about_its_processor(tmp_path):
    assert machine.examine_processor(tmp_path / "absent").found == "no known features"
