"""Errors that no command foresaw: whether the user's own program raised them, and where. Needs no torch."""

import sysconfig
import traceback
from importlib.util import find_spec
from pathlib import Path
from traceback import FrameSummary
from types import TracebackType

# Whose code runs between a command and the user's.
_BETWEEN = ("precast", "torch", "typer", "click")


def unexpected_message(error: BaseException, trace: TracebackType | None) -> str:
    """What to print of the error."""
    message = f"error: {type(error).__name__}: {error}"
    place = users_place(trace)
    if place is None:
        why, fix = "this was not expected, and may be a mistake in Precast", "precast --debug … shows where it happened"
        return f"{message}\n  why: {why}\n  fix: {fix}"
    why, fix = "the program itself raised this for its inputs", "mend it there; precast --debug … shows the whole way"
    return f"{message}\n  at:  {place}\n  why: {why}\n  fix: {fix}"


def users_place(trace: TracebackType | None) -> str | None:
    """The line of the user's program, or of a library that it calls, that raised; None if Precast did, or nobody else.

    What torch raises was asked for by whoever called it.
    """
    frames = traceback.extract_tb(trace)
    precast, *others = map(_folder, _BETWEEN)
    if not frames or _is_in(frames[-1], precast):
        return None
    between = [precast, *others, sysconfig.get_path("stdlib")]
    users = [frame for frame in frames if not any(_is_in(frame, folder) for folder in between)]
    return f"{users[-1].filename}:{users[-1].lineno} in {users[-1].name}" if users else None


def _folder(package: str) -> str | None:
    spec = find_spec(package)
    return None if spec is None or spec.origin is None else str(Path(spec.origin).parent)


def _is_in(frame: FrameSummary, folder: str | None) -> bool:
    if folder is None:
        return False
    inside = Path(frame.filename).is_relative_to(folder)
    # Installed packages may lie in a folder of the standard library's.
    return inside and ("site-packages" in folder or "site-packages" not in frame.filename)
