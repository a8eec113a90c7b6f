"""Files that the documentation names exist."""

import re

import pytest

from tests.repository.sources import PACKAGE, ROOT

PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
# What was is told in the changelog, and by pages on decisions of then; users' own files are examples.
SKIPPED = {"CHANGELOG.md"}
EXAMPLES = {"file.py", "model.py", "module.py", "repro/repro.py"}


def named_files(text: str) -> set[str]:
    """Paths of Python files and C++ sources between backquotes; a folder before them may be left out."""
    return set(re.findall(r"`(?:src/precast/)?([\w/]+\.(?:py|cpp|h))(?:::\w+)?`", text))


@pytest.mark.parametrize("page", [each for each in PAGES if each.name not in SKIPPED], ids=lambda page: page.name)
def test_files_that_a_page_names_exist(page):
    named = named_files(page.read_text(encoding="utf-8")) - EXAMPLES
    known = {
        path.name
        for folder in ("src", "tests", "benchmarks", "examples", "include")
        for path in ROOT.glob(f"{folder}/**/*")
    }
    missing = [
        name
        for name in sorted(named)
        if not (PACKAGE / name).exists() and not (ROOT / name).exists() and ("/" in name or name not in known)
    ]
    assert not missing


def test_a_file_that_is_gone_is_seen():
    assert named_files("see `lower/graph.py` and `src/precast/api.py`") == {"lower/graph.py", "api.py"}
