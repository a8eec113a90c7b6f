"""What only CPUs have is said in their target's folder: elsewhere, it would be a second target's concern."""

import re
from pathlib import Path

import pytest

import precast

PACKAGE = Path(precast.__file__).parent
CPU = PACKAGE / "native" / "targets" / "cpu"
WORDS = re.compile(r"C\+\+|oneDNN|OpenMP|dnnl", re.IGNORECASE)


@pytest.mark.parametrize("folder", ["native", "packaging", "report"])
def test_the_words_of_the_cpu_are_said_in_its_folder(folder):
    files = [path for path in (PACKAGE / folder).rglob("*.py") if CPU not in path.parents]
    assert not [str(path) for path in files if WORDS.search(path.read_text())]


def test_the_cpu_says_them():
    assert any(WORDS.search(path.read_text()) for path in CPU.rglob("*.py"))
