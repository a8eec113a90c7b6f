"""Units that are compiled before anyone asks: once, told of if they fail, gone with the process."""

import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from precast.cache import Store
from precast.errors import BuildError
from precast.native.targets.cpu.build.library import build, build_early
from precast.native.targets.cpu.build.objects import is_started, take
from precast.native.targets.cpu.sources import Sources, Unit

_ANSWER = 'extern "C" __attribute__((visibility("default"))) int answer() { return %d; }'


@pytest.fixture
def logging_compiler(tmp_path):
    """A compiler that notes what it is asked to do, and the function that tells how often it compiled a file."""
    log, script = tmp_path / "calls", tmp_path / "logging-g++"
    script.write_text(f'#!/bin/sh\necho "$@" >> {log}\nexec g++ "$@"\n')
    script.chmod(0o755)
    return str(script), lambda name: log.read_text().count(f"/{name}") if log.exists() else 0


def store_in(folder: Path) -> Store:
    return Store(folder, limit=2**30)


def sources_of(answer: int, name: str = "answer.cpp") -> Sources:
    return Sources((Unit(name, _ANSWER % answer, "routines"),), ())


def test_what_was_begun_early_is_not_compiled_again(tmp_path, logging_compiler):
    compiler, compilations = logging_compiler
    store = store_in(tmp_path / "cache")
    build_early(sources_of(1), store=store, compiler=compiler)
    build_early(sources_of(1), store=store, compiler=compiler)
    build(sources_of(1), store=store, compiler=compiler)
    assert compilations("answer.cpp") == 1


def test_nothing_is_begun_for_what_is_in_the_store(tmp_path, logging_compiler):
    compiler, compilations = logging_compiler
    store = store_in(tmp_path / "cache")
    build(sources_of(2), store=store, compiler=compiler)
    build_early(sources_of(2), store=store, compiler=compiler)
    assert compilations("answer.cpp") == 1


def test_units_that_are_begun_together_all_arrive(tmp_path, logging_compiler):
    compiler, compilations = logging_compiler
    units = tuple(Unit(f"part{n}.cpp", f"int part{n}() {{ return {n}; }}", "routines") for n in range(5))
    store = store_in(tmp_path / "cache")
    build_early(Sources(units, ()), store=store, compiler=compiler)
    build(Sources(units, ()), store=store, compiler=compiler)
    assert [compilations(unit.name) for unit in units] == [1] * 5


def test_a_unit_that_failed_early_is_refused_with_its_errors(tmp_path):
    sources = Sources((Unit("wrong.cpp", "int f() { return does_not_exist; }", "routines"),), ())
    build_early(sources, store=store_in(tmp_path))
    with pytest.raises(BuildError, match=r"wrong\.cpp[\s\S]*does_not_exist"):
        build(sources, store=store_in(tmp_path))


def test_a_unit_that_nobody_began_is_not_taken(tmp_path):
    assert not is_started("no such key")
    assert not take("no such key", tmp_path / "object.o")


_FORK = """
    import os, sys
    from pathlib import Path
    from precast.native.targets.cpu.build.library import build, build_early
    from precast.cache import Store
    from precast.native.targets.cpu.sources import Sources, Unit
    sources = Sources((Unit("answer.cpp", "int answer() { return 42; }", "routines"),), ())
    store = Store(Path(sys.argv[1]), limit=2**30)
    build_early(sources, store=store)
    if os.fork() == 0:
        print(build(sources, store=store).path.exists(), flush=True)
        sys.exit()
    os.wait()
    print(build(sources, store=store).path.exists())
"""


def test_a_forked_child_builds_for_itself_and_leaves_its_parents_files(tmp_path):
    command = [sys.executable, "-c", textwrap.dedent(_FORK), str(tmp_path)]
    assert (
        subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.split() == ["True"] * 2
    )


_LEAVE = """
    import sys
    from pathlib import Path
    from precast.native.targets.cpu.build.library import build_early
    from precast.cache import Store
    from precast.native.targets.cpu.sources import Sources, Unit
    sources = Sources((Unit("answer.cpp", "int answer() { return 42; }", "routines"),), ())
    build_early(sources, store=Store(Path(sys.argv[1]), limit=2**30), compiler=sys.argv[2])
"""


def test_a_compiler_that_nobody_waited_for_ends_with_the_process(tmp_path):
    told, script = tmp_path / "process", tmp_path / "endless-g++"
    script.write_text(f"#!/bin/sh\nsleep 1000 &\necho $! > {told}.new\nmv {told}.new {told}\nwait\n")
    script.chmod(0o755)
    code = textwrap.dedent(_LEAVE) + f"import os, time\nwhile not os.path.exists({str(told)!r}): time.sleep(0.01)\n"
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "cache"), str(script)], check=True, timeout=60)
    assert not _is_running(int(told.read_text()))


def _is_running(process: int) -> bool:
    for _ in range(100):
        try:
            # Whoever inherits an ended process may be slow to notice it.
            if (Path("/proc") / str(process) / "stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return False
            os.kill(process, 0)
        except (FileNotFoundError, ProcessLookupError):
            return False
        time.sleep(0.05)
    return True
