"""What is being written is hidden, whole when it appears, and removed by the next writer when its own was killed."""

import os
import signal
import time
from pathlib import Path

import pytest

from precast.cache.partial import partial_file, partial_folder, replace_together


def killed_while(context) -> None:
    """A child that is killed while it is inside."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        with context():
            os.write(writer, b"in")
            time.sleep(60)
    os.read(reader, 2)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def test_the_next_writer_removes_what_a_killed_one_left(tmp_path):
    for context in (lambda: partial_file(tmp_path / "model"), lambda: partial_folder(".model.", tmp_path)):
        killed_while(context)
        assert len(os.listdir(tmp_path)) == 1
        with context():
            assert len(os.listdir(tmp_path)) == 1
        assert os.listdir(tmp_path) == []


def test_what_a_living_writer_is_at_is_left_alone(tmp_path):
    with partial_file(tmp_path / "model") as (first, _), partial_file(tmp_path / "model") as (second, _):
        assert first.exists()
        assert second.exists()
    with partial_folder(".model.", tmp_path) as first, partial_folder(".model.", tmp_path) as second:
        assert first.exists()
        assert second.exists()


def test_other_files_are_left_alone(tmp_path):
    foreign = [tmp_path / ".model.notes", tmp_path / ".other.x.partial", tmp_path / "model.partial"]
    for path in foreign:
        path.write_text("mine")
    with partial_file(tmp_path / "model"):
        pass
    assert sorted(tmp_path.iterdir()) == sorted(foreign)


def test_files_are_replaced_together_or_not_at_all(tmp_path, monkeypatch):
    old = {name: tmp_path / name for name in ("first", "second")}
    new = {name: tmp_path / f"new {name}" for name in ("first", "second")}
    for path in (*old.values(), *new.values()):
        path.write_text(path.name)
    replaced = os.replace

    def fail_at_second(source, target):
        if Path(source) == new["second"]:
            raise OSError("no")
        replaced(source, target)

    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", fail_at_second)
        with pytest.raises(OSError, match="no"):
            replace_together([(new[name], old[name]) for name in ("first", "second")])
    assert [path.read_text() for path in old.values()] == ["first", "second"]
    new["first"].write_text("new first")
    replace_together([(new[name], old[name]) for name in ("first", "second")])
    assert [path.read_text() for path in old.values()] == ["new first", "new second"]
    assert sorted(os.listdir(tmp_path)) == ["first", "second"]
