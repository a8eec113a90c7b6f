"""What is committed reads the same on every machine, and claims to be finished."""

import re
import shutil
import subprocess
from collections.abc import Iterator

import pytest

from tests.repository.sources import ROOT

# Spelled so that this file does not find itself.
UNWANTED = {
    "a path of one machine": re.compile(r"(?<![\w.~/])/(?:work|root|home|Users)\b"),
    "an index of packages": re.compile(r"\b(?:py[p]i|download\.pytor[c]h)\.org\b"),
    "a note of unfinished work": re.compile(r"\b(?:TO[D]O|FIX[M]E|X{3})\b"),
}


def unwanted_in(text: str) -> Iterator[tuple[int, str]]:
    """Line and kind of everything that has no place in a committed text."""
    for number, line in enumerate(text.splitlines(), start=1):
        for kind, pattern in UNWANTED.items():
            if pattern.search(line):
                yield number, kind


def committed_texts() -> Iterator[tuple[str, str]]:
    # In containers the checkout often belongs to another user, which git refuses unless told that it is fine.
    command = ["git", "-c", "safe.directory=*", "ls-files", "-z"]
    listing = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    for name in listing.stdout.split("\0")[:-1]:
        path = ROOT / name
        if path.is_file() and b"\0" not in (content := path.read_bytes()):
            yield name, content.decode()


@pytest.mark.skipif(
    not (ROOT / ".git").exists() or shutil.which("git") is None, reason="without git, nothing tells what is committed"
)
def test_committed_text_is_finished_and_of_no_one_machine():
    found = [f"{name}:{number}: {kind}" for name, text in committed_texts() for number, kind in unwanted_in(text)]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "text",
    [
        "/ro" + "ot/.cache",
        "see '/ho" + "me/ann/x'",
        "cd /wo" + "rk",
        "# TO" + "DO: later",
        "https://py" + "pi.org/simple",
        "FIX" + "ME",
        "XX" + "X",
    ],
)
def test_each_kind_is_seen(text):
    assert list(unwanted_in(text))


@pytest.mark.parametrize("text", ["~/.cache", "docs/work/plan", "https://example.org/home", "mktemp XXXXXX", "autodoc"])
def test_innocent_text_passes(text):
    assert not list(unwanted_in(text))
