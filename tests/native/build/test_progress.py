"""The bar: for waits of more than a second, and for people only."""

import io
import time

from rich.console import Console

from precast.native.targets.cpu.build import progress
from precast.native.targets.cpu.build.progress import showing_progress


def shown(seconds: float, *, is_terminal: bool) -> str:
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=is_terminal, width=80)
    with showing_progress("Building", total=2, console=console) as bar:
        bar.advance()
        time.sleep(seconds)
    return screen.getvalue()


def test_a_long_wait_shows_a_bar(monkeypatch):
    monkeypatch.setattr(progress, "PATIENCE", 0.01)
    assert "1/2" in shown(0.3, is_terminal=True)


def test_a_short_wait_shows_nothing():
    assert "Building" not in shown(0, is_terminal=True)


def test_a_log_file_gets_no_bar(monkeypatch):
    monkeypatch.setattr(progress, "PATIENCE", 0.01)
    assert shown(0.1, is_terminal=False).strip() == ""


def test_without_standard_error_there_is_no_bar(monkeypatch):
    monkeypatch.setattr("sys.stderr", None)
    with showing_progress("Building", total=1) as bar:
        bar.advance()
