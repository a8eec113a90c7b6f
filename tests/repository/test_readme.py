"""The tour in the README works as it is printed."""

import re

import pytest

from tests.repository.sources import ROOT


def tour() -> list[str]:
    """The Python of the README's tour, block by block."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    section = text[text.index("## A five-minute tour") : text.index("## How it works")]
    return re.findall(r"```python\n(.*?)```", section, re.DOTALL)


@pytest.mark.timeout(600)
def test_the_tour_runs_from_top_to_bottom(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "tour"}
    blocks = tour()
    for block in blocks:
        exec(compile(block, "README.md", "exec"), names)
    assert len(blocks) > 8
    assert "aten.addmm.default" in capsys.readouterr().out
