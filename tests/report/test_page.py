"""The page of a report: one file, which can be read back and compared, and works in a browser."""

import hashlib
import json
import re
from dataclasses import asdict
from importlib.resources import files

import pytest
import torch

import precast
from precast.errors import InputValueError
from precast.report.collect import collect
from precast.report.page import page_text, read_page, write_page
from tests.report.browser import Page, needs_chromium, open_browser
from tests.report.networks import Network

ASSETS = files("precast.report") / "assets"


def test_a_page_is_one_file_that_names_no_other(tmp_path):
    path = precast.report(torch.nn.Linear(4, 3), torch.ones(2, 4), path=tmp_path / "report.html", calls=0)
    text = path.read_text()
    ours = text[text.index('<script type="module">') :] + text[: text.index("<script")]
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", ours)
    assert not re.search(r'<(script|img|iframe)[^>]* src=|<link[^>]* href="(?!data:)|@import|\bfetch\(', ours)


def test_the_data_of_a_page_can_be_read_back(tmp_path):
    report = collect(torch.nn.Linear(4, 3), (torch.ones(2, 4),), {}, calls=0)
    assert read_page(write_page(report, tmp_path / "report.html")) == json.loads(json.dumps(asdict(report)))


def test_text_of_a_model_cannot_become_a_part_of_the_page():
    report = collect(lambda x: x + 1, (torch.ones(2),), {}, calls=0, title="</title><script>alert(1)</script>")
    assert "<script>alert" not in page_text(report)


def test_other_files_are_no_reports(tmp_path):
    (tmp_path / "other.html").write_text("<html></html>")
    with pytest.raises(InputValueError, match="does not contain the data"):
        read_page(tmp_path / "other.html")


def test_vendored_libraries_are_what_their_list_says():
    text = (ASSETS / "LICENSES.md").read_text()
    listed = re.findall(r"^### `vendor/(\S+)`.*?sha256 `([0-9a-f]{64})`", text, re.MULTILINE | re.DOTALL)
    found = {each.name: hashlib.sha256(each.read_bytes()).hexdigest() for each in (ASSETS / "vendor").iterdir()}
    assert dict(listed) == found


@needs_chromium
def test_the_page_works(tmp_path):
    path = precast.report(Network(), torch.ones(8, 16), path=tmp_path / "report.html", calls=1)
    with open_browser() as browser:
        page = Page(browser, path)
        for address in page.script("return [...document.querySelectorAll('nav a')].map(each => each.hash.slice(1))"):
            page.go(address)
            assert page.text()
        assert page.complaints() == []
