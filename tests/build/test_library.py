"""Building: once for equal content, whole or not at all, and clear words when it fails."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from precast.build.cache import cached, content_key
from precast.build.compiler import find_compiler
from precast.build.library import build
from precast.build.onednn import find_onednn
from precast.codegen.generate import generate
from precast.errors import BuildError
from precast.ir.loops.sources import Sources, Unit
from tests.lower.pipeline import lowered, make_entry


@pytest.fixture
def counting_compiler(tmp_path):
    """A compiler that counts its calls, and the function that tells how many there were."""
    log, script = tmp_path / "calls", tmp_path / "counting-g++"
    script.write_text(f'#!/bin/sh\necho call >> {log}\nexec g++ "$@"\n')
    script.chmod(0o755)
    return str(script), lambda: len(log.read_text().splitlines()) if log.exists() else 0


def simple_sources(text='extern "C" int answer() { return 42; }'):
    return Sources((Unit("answer.cpp", text),), (), needs_onednn=False)


def test_a_second_build_does_not_call_the_compiler(tmp_path, counting_compiler):
    compiler, calls = counting_compiler
    first = build(simple_sources(), cache_directory=tmp_path / "cache", compiler=compiler)
    count = calls()
    assert count == 2
    assert build(simple_sources(), cache_directory=tmp_path / "cache", compiler=compiler) == first
    assert calls() == count


def test_only_the_unit_that_changed_is_compiled_again(tmp_path, counting_compiler):
    compiler, calls = counting_compiler
    other = Unit("other.cpp", "int other() { return 1; }")
    for text in ('extern "C" int answer() { return 1; }', 'extern "C" int answer() { return 2; }'):
        sources = Sources((Unit("answer.cpp", text), other), (), needs_onednn=False)
        build(sources, cache_directory=tmp_path / "cache", compiler=compiler)
    assert calls() == 3 + 2


def test_other_flags_give_another_library(tmp_path):
    plain = build(simple_sources(), cache_directory=tmp_path)
    checked = build(simple_sources(), cache_directory=tmp_path, extra_flags=["-O1"])
    assert plain.path != checked.path


def test_two_builds_of_one_program_are_byte_for_byte_equal(tmp_path):
    sources = generate([make_entry(lowered(lambda a, b: (a @ b).exp(), torch.zeros(4, 4), torch.zeros(4, 4)))])
    one, two = (build(sources, cache_directory=tmp_path / name) for name in ("one", "two"))
    assert one.path.read_bytes() == two.path.read_bytes()
    assert one.needs == ("libdnnl.so.3",)


def test_a_command_with_arguments_is_a_compiler():
    assert find_compiler("g++ -pipe").command[1:] == ("-pipe",)


def test_no_compiler_says_which_package_brings_one(tmp_path):
    with pytest.raises(BuildError, match="the package g\\+\\+"):
        build(simple_sources(), cache_directory=tmp_path, compiler="no-such-compiler")


def test_no_compiler_at_all(monkeypatch):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(BuildError, match=r"g\+\+, c\+\+, clang\+\+ cannot be run"):
        find_compiler()


def test_a_refused_unit_is_named_with_its_first_errors(tmp_path):
    with pytest.raises(BuildError, match=r"answer\.cpp[\s\S]*does_not_exist"):
        build(simple_sources("int f() { return does_not_exist; }"), cache_directory=tmp_path)
    assert not list(tmp_path.rglob("*.o"))
    assert not list(tmp_path.rglob(".partial*"))


def test_an_undefined_name_is_found_when_linking(tmp_path):
    with pytest.raises(BuildError, match=r"link the model[\s\S]*undefined reference"):
        build(simple_sources('int missing(); extern "C" int f() { return missing(); }'), cache_directory=tmp_path)


def test_missing_onednn_is_named(tmp_path):
    with pytest.raises(BuildError, match="pip install onednn-cpu-gomp"):
        find_onednn(tmp_path)


def test_a_failed_maker_leaves_nothing(tmp_path):
    def fail(target: Path) -> None:
        target.write_text("half")
        raise RuntimeError

    with pytest.raises(RuntimeError):
        cached(tmp_path, "name", fail)
    assert not list(tmp_path.iterdir())


def test_parts_of_a_key_do_not_run_into_each_other():
    assert content_key(["ab", "c"]) != content_key(["a", "bc"])


def test_killed_half_way_nothing_can_be_loaded(tmp_path):
    code = (
        "import sys, time; from pathlib import Path; from precast.build.cache import cached\n"
        "def make(target):\n    target.write_text('half'); print('half', flush=True); time.sleep(60)\n"
        "cached(Path(sys.argv[1]), 'library.so', make)"
    )
    process = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"half\n"
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    process.stdout.close()
    assert not (tmp_path / "library.so").exists()
    assert cached(tmp_path, "library.so", lambda target: target.write_text("whole")).read_text() == "whole"


def test_the_compiler_is_known_by_content_not_by_running_it(tmp_path):
    compiler = tmp_path / "g++"
    shutil.copy(shutil.which("true"), compiler)
    before = find_compiler(str(compiler)).identity
    time.sleep(0.01)
    compiler.touch()
    assert find_compiler(str(compiler)).identity != before
