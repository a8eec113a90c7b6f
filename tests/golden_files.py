"""Golden texts: what a test prints is kept in a file beside it, so that a change is seen and accepted on purpose."""

import difflib
import os
from pathlib import Path

ACCEPT_VARIABLE = "PRECAST_ACCEPT"


def assert_file_holds(path: Path, text: str) -> None:
    """Fail with a diff unless the file holds this text; when accepting, write the text into the file instead."""
    text = text.rstrip("\n") + "\n"
    if os.environ.get(ACCEPT_VARIABLE) == "1":
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return
    expected = path.read_text(encoding="utf-8") if path.exists() else ""
    if text != expected:
        lines = difflib.unified_diff(expected.splitlines(), text.splitlines(), "golden file", "this run", lineterm="")
        what = f"the text differs from {path.name}" if path.exists() else f"there is no {path.name} yet"
        fix = f"if the new text is right, accept it: {ACCEPT_VARIABLE}=1 make test (or pytest on this one test)"
        raise AssertionError("\n".join([what, *lines, fix]))
