"""The API reference has every public name."""

import re
from dataclasses import fields
from importlib import import_module
from types import ModuleType

import pytest

from precast import Options
from tests.repository.sources import ROOT

PUBLIC = ["", ".autograd", ".compilers", ".export", ".generation", ".onnx", ".partition", ".quantize", ".runtime"]
LISTED = re.compile(r"^::: precast[\w.]*\.(\w+)$", re.MULTILINE)


@pytest.mark.parametrize("module", [f"precast{name}" for name in PUBLIC])
def test_every_public_name_is_in_the_reference(module):
    listed = {name for page in ROOT.glob("docs/reference/*.md") for name in LISTED.findall(page.read_text())}
    public = import_module(module)
    wanted = {name for name in public.__all__ if not isinstance(getattr(public, name), ModuleType)}
    # Errors are listed by their module.
    assert wanted - listed - {"__version__", "PrecastError"} == set()


def test_every_option_is_in_the_reference():
    page = (ROOT / "docs/reference/options.md").read_text().partition("## Keywords")[0]
    assert set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)) == {each.name for each in fields(Options)}
