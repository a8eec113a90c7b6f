"""Every snippet of every page runs as it is printed."""

import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from tests.docs.snippets import Snippet, snippets_of
from tests.repository.sources import ROOT

# Decisions and the changelog tell of the time when they were written.
PAGES = [
    page
    for page in sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
    if "decisions" not in page.parts and page.name != "CHANGELOG.md" and any(snippets_of(page))
]
QUICK = ("README.md",)


def run(snippet: Snippet, page: Path, names: dict[str, object]) -> None:
    match snippet.kind:
        case "file":
            assert snippet.title is not None
            Path(snippet.title).write_text(snippet.code, encoding="utf-8")
        case "sh":
            tools = Path(sys.executable).parent
            environment = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}", "VIRTUAL_ENV": str(tools.parent)}
            command = ["bash", "-euo", "pipefail", "-c", snippet.code]
            done = subprocess.run(command, env=environment, capture_output=True, text=True)
            assert done.returncode == 0, f"{page.name}:{snippet.line}\n{done.stdout}{done.stderr}"
        case _:
            # Lines of the page in tracebacks, and sources that can be looked up as those of any module.
            path = Path(f"{page.stem}_{snippet.line}.py").absolute()
            path.write_text(snippet.code, encoding="utf-8")
            exec(compile(snippet.code, str(path), "exec"), names)


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=[] if page.name in QUICK else pytest.mark.slow) for page in PAGES],
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_a_page_runs_from_top_to_bottom(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]))
    names: dict[str, object] = {"__name__": "page"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for snippet in snippets_of(page):
            run(snippet, page, names)


def test_snippets_are_found(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "<!-- setup\na = 1\n-->\n```python\nb = 2\n```\n<!-- not run: no -->\n```python\nc = 3\n```\n"
        '```python title="m.py"\nd = 4\n```\n```sh\necho\n```\n```\nplain\n```\n'
    )
    found = [(each.kind, each.code, each.title) for each in snippets_of(page)]
    assert found == [
        ("python", "a = 1\n", None), ("python", "b = 2\n", None), ("file", "d = 4\n", "m.py"), ("sh", "echo\n", None)
    ]  # fmt: skip
