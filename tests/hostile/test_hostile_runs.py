"""A short run of what ``make fuzz-files`` does at length, and what it tells of cases that fail."""

import os
import signal
import subprocess
import sys
import time

import pytest

from tests.hostile.children import Limits, failures
from tests.hostile.run import Attack


def test_hostile_files_are_refused_or_harmless():
    assert list(Attack(5).on_files(120)) == []


def test_hostile_arrays_are_read_as_they_are_or_refused():
    assert list(Attack(5).on_arrays(600)) == []


def test_calls_from_c_are_answered_with_a_status():
    assert list(Attack(5).on_calls(600)) == []


@pytest.mark.slow
def test_many_hostile_files_are_refused_or_harmless():
    assert list(Attack(6).on_files(5000)) == []


@pytest.mark.slow
def test_hostile_files_arrays_and_calls_are_clean_under_sanitizers():
    counts = ["--files", "1000", "--arrays", "2000", "--calls", "2000"]
    command = [sys.executable, "-m", "tests.hostile.run", *counts, "--sanitized"]
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
    if case == 11:
        time.sleep(600)


def test_crashes_hangs_foreign_errors_and_too_much_memory_are_told():
    limits = Limits(seconds=1, gigabytes=1, patience=3)
    found = {failure.case: failure.how for failure in failures(misbehave, range(12), limits, workers=2)}
    assert sorted(found) == [3, 5, 7, 8, 11]
    assert found[3].startswith("ended its process")
    assert "KeyError: 'foreign'" in found[5]
    assert found[7] == found[11] == "took too long"
    assert "MemoryError" in found[8]
