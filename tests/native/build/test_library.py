"""Building: once for equal content, whole or not at all, and clear words when it fails."""

import ctypes
import errno
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from precast.cache import CacheWarning, Store
from precast.errors import BuildError
from precast.native.targets.cpu.build.built import find_library
from precast.native.targets.cpu.build.compiler import find_compiler
from precast.native.targets.cpu.build.library import build, start_build
from precast.native.targets.cpu.build.onednn import find_onednn
from precast.native.targets.cpu.codegen.generate import generate
from precast.native.targets.cpu.sources import Sources, Unit
from tests.native.lowering.pipeline import lowered, make_entry


@pytest.fixture
def counting_compiler(tmp_path):
    """A compiler that counts its calls, and the function that tells how many there were."""
    log, script = tmp_path / "calls", tmp_path / "counting-g++"
    script.write_text(f'#!/bin/sh\necho call >> {log}\nexec g++ "$@"\n')
    script.chmod(0o755)
    return str(script), lambda: len(log.read_text().splitlines()) if log.exists() else 0


_ANSWER = 'extern "C" __attribute__((visibility("default"))) int answer() { return 42; }'


def store_in(folder: Path) -> Store:
    return Store(folder, limit=2**30)


def simple_sources(text=_ANSWER):
    return Sources((Unit("answer.cpp", text),), ())


def test_a_second_build_does_not_call_the_compiler(tmp_path, counting_compiler):
    compiler, calls = counting_compiler
    first = build(simple_sources(), store=store_in(tmp_path / "cache"), compiler=compiler)
    count = calls()
    assert count == 2
    assert build(simple_sources(), store=store_in(tmp_path / "cache"), compiler=compiler) == first
    assert calls() == count


def test_only_the_unit_that_changed_is_compiled_again(tmp_path, counting_compiler):
    compiler, calls = counting_compiler
    other = Unit("other.cpp", "int other() { return 1; }")
    for text in ('extern "C" int answer() { return 1; }', 'extern "C" int answer() { return 2; }'):
        sources = Sources((Unit("answer.cpp", text), other), ())
        build(sources, store=store_in(tmp_path / "cache"), compiler=compiler)
    assert calls() == 3 + 2


def test_other_flags_give_another_library(tmp_path):
    plain = build(simple_sources(), store=store_in(tmp_path))
    checked = build(simple_sources(), store=store_in(tmp_path), extra_flags=["-O1"])
    assert plain.path != checked.path


def test_two_builds_of_one_program_are_byte_for_byte_equal(tmp_path):
    sources = generate([make_entry(lowered(lambda a, b: (a @ b).exp(), torch.zeros(4, 4), torch.zeros(4, 4)))])
    one, two = (build(sources, store=store_in(tmp_path / name)) for name in ("one", "two"))
    assert one.path.read_bytes() == two.path.read_bytes()
    assert one.needs == ("libdnnl.so.3",)


def test_a_command_with_arguments_is_a_compiler():
    assert find_compiler("g++ -pipe").command[1:] == ("-pipe",)


def test_no_compiler_says_which_package_brings_one(tmp_path):
    with pytest.raises(BuildError, match="the package g\\+\\+"):
        build(simple_sources(), store=store_in(tmp_path), compiler="no-such-compiler")


def test_no_compiler_at_all(monkeypatch):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(BuildError, match=r"g\+\+, c\+\+, clang\+\+ cannot be run"):
        find_compiler()


def test_a_refused_unit_is_named_with_its_first_errors(tmp_path):
    with pytest.raises(BuildError, match=r"answer\.cpp[\s\S]*does_not_exist"):
        build(simple_sources("int f() { return does_not_exist; }"), store=store_in(tmp_path))
    assert not list(tmp_path.rglob("*.o"))


def test_an_undefined_name_is_found_when_linking(tmp_path):
    with pytest.raises(BuildError, match=r"link the model[\s\S]*undefined reference"):
        build(simple_sources('int missing(); extern "C" int f() { return missing(); }'), store=store_in(tmp_path))


def test_missing_onednn_is_named(tmp_path):
    with pytest.raises(BuildError, match="pip install onednn-cpu-gomp"):
        find_onednn(tmp_path)


def test_the_compiler_is_known_by_content_not_by_running_it(tmp_path):
    compiler = tmp_path / "g++"
    shutil.copy(shutil.which("true"), compiler)
    before = find_compiler(str(compiler)).identity
    time.sleep(0.01)
    compiler.touch()
    assert find_compiler(str(compiler)).identity != before


def test_a_library_is_found_by_its_key_as_long_as_it_is_kept(tmp_path):
    store = store_in(tmp_path)
    built = build(simple_sources(), store=store)
    assert find_library(built.key, built.needs, store=store) == built
    store.clear()
    with pytest.raises(BuildError, match="not in the cache"):
        find_library(built.key, built.needs, store=store)


_BUILD = """
import sys
from pathlib import Path
from precast.native.targets.cpu.build.library import build
from precast.cache import Store
from precast.native.targets.cpu.sources import Sources, Unit
unit = Unit("answer.cpp", sys.argv[3])
store = Store(Path(sys.argv[1]), limit=2**30)
print(build(Sources((unit,), ()), store=store, compiler=sys.argv[2]).path)
"""


def building_process(folder: Path, compiler: str) -> subprocess.Popen:
    command = [sys.executable, "-c", _BUILD, str(folder), compiler, _ANSWER]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)


def script(path: Path, text: str) -> str:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def answer_of(path: Path) -> int:
    return ctypes.CDLL(str(path)).answer()


def test_killed_half_way_the_next_build_starts_clean(tmp_path):
    half = script(tmp_path / "half-g++", 'for last; do :; done; echo half > "$last"; echo half; exec sleep 60')
    process = building_process(tmp_path / "cache", half)
    time.sleep(1.5)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    assert not list((tmp_path / "cache").rglob("*.so"))
    assert answer_of(build(simple_sources(), store=store_in(tmp_path / "cache")).path) == 42


def test_two_processes_may_build_the_same_at_once(tmp_path):
    processes = [building_process(tmp_path / "cache", "g++") for _ in range(2)]
    paths = {process.communicate()[0].strip() for process in processes}
    assert [process.returncode for process in processes] == [0, 0]
    assert all(answer_of(Path(path)) == 42 for path in paths)


def test_a_cache_that_cannot_be_written_still_gives_a_library(tmp_path):
    (tmp_path / "cache").write_text("a file, not a folder")
    with pytest.warns(CacheWarning, match="going on without the cache"):
        library = build(simple_sources(), store=store_in(tmp_path / "cache"))
    assert answer_of(library.path) == 42


def test_a_full_disk_still_gives_a_library(tmp_path, monkeypatch):
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("precast.cache.store.write_entry", full)
    with pytest.warns(CacheWarning, match="No space left"):
        library = build(simple_sources(), store=store_in(tmp_path))
    assert answer_of(library.path) == 42


def test_a_full_disk_while_compiling_is_told(tmp_path):
    full = script(tmp_path / "full-g++", 'echo "fatal error: error writing: No space left on device" >&2; exit 1')
    with pytest.raises(BuildError, match="No space left on device"):
        build(simple_sources(), store=store_in(tmp_path / "cache"), compiler=full)


def test_a_damaged_library_is_built_again(tmp_path):
    library = build(simple_sources(), store=store_in(tmp_path))
    library.path.write_bytes(library.path.read_bytes()[:-100])
    with pytest.warns(CacheWarning, match="damaged"):
        again = build(simple_sources(), store=store_in(tmp_path))
    assert answer_of(again.path) == 42


def test_a_build_that_was_begun_is_waited_for(tmp_path):
    store = store_in(tmp_path)
    finish = start_build(simple_sources(), store=store)
    assert finish() == build(simple_sources(), store=store)


def test_a_library_that_was_dropped_before_anyone_waited_is_built_again(tmp_path):
    store = store_in(tmp_path)
    finish = start_build(simple_sources(), store=store)
    finish().path.unlink()
    assert finish().path.exists()


def test_a_build_that_was_begun_and_failed_tells_whoever_waits(tmp_path):
    finish = start_build(simple_sources("int f() { return does_not_exist; }"), store=store_in(tmp_path))
    with pytest.raises(BuildError, match="does_not_exist"):
        finish()


def test_straight_line_code_is_compiled_without_effort(tmp_path):
    text = f"#ifndef __OPTIMIZE__\n#define __OPTIMIZE__ 0\n#endif\n{_ANSWER.replace('42', '__OPTIMIZE__')}"
    efforts = {effort: Sources((Unit("effort.cpp", text, effort),), ()) for effort in ("loops", "routines", "once")}
    store = store_in(tmp_path)
    built = {effort: ctypes.CDLL(str(build(each, store=store).path)) for effort, each in efforts.items()}
    assert {effort: each.answer() for effort, each in built.items()} == {"loops": 1, "routines": 1, "once": 0}
