"""Links between pages lead somewhere: to files that exist, and to headings that are there."""

import re
from pathlib import Path

import pytest

from tests.repository.sources import ROOT

PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md")])
_FENCE = re.compile(r"^( *)```.*?^\1```$", re.DOTALL | re.MULTILINE)


def links_of(text: str) -> list[str]:
    return re.findall(r"\]\(([^()\s]+)\)", re.sub(r"`[^`\n]*`", "", _FENCE.sub("", text)))


def anchors_of(page: Path) -> set[str]:
    """The headings of a page as GitHub and MkDocs name them."""
    headings = re.findall(r"^#+ +(.+)$", _FENCE.sub("", page.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def broken_links(page: Path) -> list[str]:
    broken = []
    for link in links_of(page.read_text(encoding="utf-8")):
        if re.match(r"\w+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors_of(target)):
            broken.append(link)
    return broken


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_of_a_page_lead_somewhere(page):
    assert not broken_links(page)


def test_a_broken_link_is_seen(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# A heading\n[a](#a-heading) [b](#none) [c](no.md) [d](https://x.y) `[e](f)`\n")
    assert broken_links(page) == ["#none", "no.md"]
