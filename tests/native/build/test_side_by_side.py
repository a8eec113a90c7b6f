"""Units are compiled side by side, and whoever waits for them sees how far they are."""

import io
import os
from pathlib import Path

import pytest
from rich.console import Console

from precast.cache import Store
from precast.native.targets.cpu.build import library, progress
from precast.native.targets.cpu.build.library import build
from precast.native.targets.cpu.sources import Sources, Unit

_UNITS = tuple(Unit(f"part{number}.cpp", f"int part{number}() {{ return {number}; }}") for number in range(2))


@pytest.fixture
def meeting_compiler(tmp_path):
    """A compiler that gives up on a unit unless another one is being compiled meanwhile."""
    script = tmp_path / "meeting-g++"
    script.write_text(f"""#!/bin/sh
case "$*" in *part*.cpp*)
    touch {tmp_path}/here.$$
    tries=0
    while [ $(ls {tmp_path}/here.* | wc -l) -lt 2 ]; do
        tries=$((tries + 1)); [ $tries -gt 300 ] && exit 1
        sleep 0.1
    done;;
esac
exec g++ "$@"
""")
    script.chmod(0o755)
    return str(script)


@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="there is one processor")
def test_two_units_are_compiled_at_the_same_time(tmp_path, meeting_compiler):
    assert build(Sources(_UNITS, ()), store=Store(tmp_path / "cache", limit=2**30), compiler=meeting_compiler).path


def slow_compiler(folder: Path) -> str:
    script = folder / "slow-g++"
    script.write_text('#!/bin/sh\nsleep 1\nexec g++ "$@"\n')
    script.chmod(0o755)
    return str(script)


def test_a_build_of_more_than_a_second_shows_how_far_it_is(tmp_path, monkeypatch):
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=80)
    monkeypatch.setattr(
        library, "showing_progress", lambda what, total: progress.showing_progress(what, total=total, console=console)
    )
    build(Sources(_UNITS, ()), store=Store(tmp_path / "cache", limit=2**30), compiler=slow_compiler(tmp_path))
    assert "Building native code" in screen.getvalue()
    assert "2/3" in screen.getvalue()
