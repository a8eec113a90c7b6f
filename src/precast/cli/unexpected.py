"""Messages for unexpected errors: whether the user's own program raised them, and where. Needs no torch."""

import sys
import sysconfig
import traceback
from importlib.util import find_spec
from pathlib import Path
from traceback import FrameSummary
from types import TracebackType

# Packages whose frames are between a command and the user's code.
_BETWEEN = ("precast", "torch", "typer", "click")


def unexpected_message(error: BaseException, trace: TracebackType | None) -> str:
    """The message for the error."""
    message = f"error: {type(error).__name__}: {error}"
    place = users_place(trace)
    if place is None:
        why, fix = "this is unexpected, and may be a bug in Precast", "precast --debug … shows the traceback"
        return f"{message}\n  why: {why}\n  fix: {fix}"
    why = "the program itself raised this error for these inputs"
    fix = "check the program and its example inputs; precast --debug … shows the traceback"
    return f"{message}\n  at:  {place}\n  why: {why}\n  fix: {fix}"


def users_place(trace: TracebackType | None) -> str | None:
    """The line that raised, in the user's program or a library that it calls; None for Precast's own errors.

    An error of torch's is attributed to its caller.
    """
    frames = traceback.extract_tb(trace)
    precast, *others = map(_folder, _BETWEEN)
    if not frames or _is_in(frames[-1], precast):
        return None
    between = [precast, *others, sysconfig.get_path("stdlib")]
    users = [frame for frame in frames if not any(_is_in(frame, folder) for folder in between) and not _starts(frame)]
    # Without any code of the user's, the torch layer that was called is the best location.
    layers = [frame for frame in frames if _is_in(frame, others[0] and f"{others[0]}/nn/modules")]
    chosen = users or layers
    return f"{chosen[-1].filename}:{chosen[-1].lineno} in {chosen[-1].name}" if chosen else None


def _starts(frame: FrameSummary) -> bool:
    """Whether this frame is the command's script, the import machinery, or generated code."""
    return frame.filename == sys.argv[0] or frame.filename.startswith(("<frozen ", "<string>"))


def _folder(package: str) -> str | None:
    spec = find_spec(package)
    return None if spec is None or spec.origin is None else str(Path(spec.origin).parent)


def _is_in(frame: FrameSummary, folder: str | None) -> bool:
    if folder is None:
        return False
    inside = Path(frame.filename).is_relative_to(folder)
    # Installed packages may be in a folder of the standard library.
    return inside and ("site-packages" in folder or "site-packages" not in frame.filename)
