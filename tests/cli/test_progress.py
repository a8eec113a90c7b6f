"""What people see who wait, where there is no terminal."""

import time

from precast.cli import progress
from precast.cli.progress import telling_steps


def test_a_step_that_takes_long_is_told_of_now_and_then(monkeypatch, capsys):
    monkeypatch.setattr(progress, "PATIENCE", 0.05)
    monkeypatch.setattr(progress, "PAUSE", 0.05)
    with telling_steps() as tell:
        tell("loading")
        tell("compiling")
        time.sleep(0.5)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) >= 2
    assert all(line.startswith("compiling… ") for line in lines)


def test_quick_steps_are_silent(capsys):
    with telling_steps() as tell:
        tell("loading")
    assert capsys.readouterr().err == ""
