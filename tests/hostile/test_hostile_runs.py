"""A short run of what ``make fuzz-files`` does at length, and what it tells of cases that fail."""

import os
import signal
import subprocess
import sys
import time

import pytest

from tests.hostile.children import failures
from tests.hostile.run import attack_arrays, attack_files


def test_hostile_files_are_refused_or_harmless():
    assert list(attack_files(120, seed=5)) == []


def test_hostile_arrays_are_read_as_they_are_or_refused():
    assert list(attack_arrays(600, seed=5)) == []


@pytest.mark.slow
def test_many_hostile_files_are_refused_or_harmless():
    assert list(attack_files(5000, seed=6)) == []


@pytest.mark.slow
def test_hostile_arrays_are_clean_under_sanitizers():
    command = [sys.executable, "-m", "tests.hostile.run", "--arrays", "2000", "--sanitized"]
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stdout[-2000:] + finished.stderr[-2000:]


def misbehave(case: int) -> None:
    if case == 3:
        os.kill(os.getpid(), signal.SIGSEGV)
    if case == 5:
        raise KeyError("foreign")
    if case == 7:
        end = time.process_time() + 30
        while time.process_time() < end:
            pass
    if case == 8:
        bytearray(3 << 30)


def test_crashes_hangs_foreign_errors_and_too_much_memory_are_told():
    found = {failure.case: failure.how for failure in failures(misbehave, range(10), seconds=1, gigabytes=1)}
    assert sorted(found) == [3, 5, 7, 8]
    assert found[3].startswith("ended its process")
    assert "KeyError: 'foreign'" in found[5]
    assert found[7] == "took too long"
    assert "MemoryError" in found[8]
