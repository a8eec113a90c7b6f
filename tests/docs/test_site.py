"""`make docs`: the site builds without a warning, and loads nothing from other servers."""

import re
import subprocess
import sys

import pytest

from tests.repository.sources import ROOT

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    pytest.importorskip("mkdocs", reason="pip install '.[docs]'")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    # With --quiet, warnings would not count, --strict or not.
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_every_page_is_there(site):
    for name in ("index", "quickstart", "security", "changelog", "examples", "decisions/index", "reference/compile"):
        assert (site / f"{name}.html").is_file()
    assert "precast.compile" in (site / "reference" / "compile.html").read_text()
    for name in ("threads-1", "threads-2", "gpu"):
        assert (site / "benchmarks" / f"{name}.svg").read_text().count("<path") > 50


def test_nothing_is_loaded_from_elsewhere(site):
    for page in site.glob("**/*.html"):
        loaded = re.findall(r'<(?:script|link|img)\b[^>]*?\b(?:src|href)="(https?:[^"]+)"', page.read_text())
        assert not loaded, f"{page}: {loaded}"


def test_examples_in_docstrings_are_code(site):
    assert "<blockquote>" not in (site / "reference" / "compile.html").read_text()
