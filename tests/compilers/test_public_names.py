"""What precast.compilers offers."""

import subprocess
import sys

import pytest

from precast import compilers


@pytest.mark.parametrize("name", compilers.__all__)
def test_name_is_there_and_is_no_module(name):
    value = getattr(compilers, name)
    assert type(value).__name__ != "module"


def test_names_are_what_they_say_after_their_modules_were_imported():
    code = "import precast.debug.unchanged, precast.compilers as c; assert callable(c.nop) and callable(c.minifier)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        compilers.nothing  # noqa: B018
