"""No committed file is one that git ignores: builds of wheels leave those out."""

import shutil
import subprocess

import pytest

from tests.repository.sources import ROOT


@pytest.mark.skipif(not (ROOT / ".git").exists() or shutil.which("git") is None, reason="needs git")
def test_no_committed_file_is_ignored():
    git = ["git", "-c", "safe.directory=*"]
    names = subprocess.run([*git, "ls-files", "src", "include", "cmake"], cwd=ROOT, capture_output=True, check=True)
    command = [*git, "check-ignore", "--no-index", "--stdin"]
    ignored = subprocess.run(command, cwd=ROOT, input=names.stdout, capture_output=True, check=False)
    assert ignored.stdout.decode() == ""
