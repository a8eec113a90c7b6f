"""Options come in as arguments; one file alone may look at the environment."""

import ast

import pytest

from tests.repository.sources import PACKAGE, dotted_names, package_files, relative

READERS = ("os.environ", "os.environb", "os.getenv", "os.getenvb")


def environment_reads_in(code: str) -> list[int]:
    return [line for line, name in dotted_names(ast.parse(code)) if name in READERS]


def test_only_the_options_read_the_environment():
    reads = [
        f"{relative(path)}:{line}"
        for path in package_files()
        if path != PACKAGE / "options.py"
        for line in environment_reads_in(path.read_text())
    ]
    assert not reads, "\n".join(["add an option to options.py instead of reading the environment here:", *reads])


@pytest.mark.parametrize("code", ["os.environ['A']", "os.environ.get('A')", "os.getenv('A')", "from os import environ"])
def test_each_way_to_read_the_environment_is_seen(code):
    assert environment_reads_in(code) == [1]
