"""What people do with the page: look, search, fold, point, press keys. In headless Chromium."""

import time
from pathlib import Path

import pytest
import torch

import precast
from precast.report.collect import collect
from precast.report.page import write_page
from tests.report.browser import Page, needs_chromium, open_browser
from tests.report.networks import Deciding, Network

pytestmark = [pytest.mark.slow, needs_chromium]
READABLE = (Path(__file__).parent / "readable.js").read_text()
SHOWN_NODES = "return document.querySelectorAll('.box:not(.group)').length"


@pytest.fixture(scope="module")
def browser():
    with open_browser() as opened:
        yield opened


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    with torch.no_grad():
        old = precast.report(Network(blocks=1), torch.ones(8, 16), path=folder / "old.html", calls=1)
    return precast.report(Network(), torch.ones(8, 16), path=folder / "new.html", calls=2, compare=old)


@pytest.fixture
def page(browser, path):
    opened = Page(browser, path)
    yield opened
    assert opened.complaints() == []


def test_every_section_is_there_and_shows_something(page):
    titles = page.script("return [...document.querySelectorAll('nav a')].map(each => each.hash.slice(1))")
    assert titles == [
        "overview",
        "compare",
        "graph",
        "kernels",
        "time",
        "memory",
        "backward",
        "breaks",
        "guards",
        "passes",
        "compile",
    ]
    for title in titles:
        page.go(title)
        assert len(page.text()) > 80


def test_modules_fold_and_unfold_in_the_drawing(page):
    page.go("graph/0")
    page.script("[...document.querySelectorAll('.tool')].find(each => each.textContent === 'Fold all').click()")
    folded = page.script(SHOWN_NODES)
    page.tell(".box.group", "click")
    assert page.count(".box.open") == 1
    page.script("[...document.querySelectorAll('.tool')].find(each => each.textContent === 'Unfold all').click()")
    assert page.count("[role=treeitem][aria-expanded=false]") == 0
    assert page.script("return precastPage.main.querySelectorAll('.box').length") > folded


def test_the_outline_folds_by_keyboard(page):
    page.go("graph/0")
    page.script("document.querySelector('[role=tree]').focus()")
    # The first row is an input, the second a module.
    page.press("\ue015", "\ue015")
    row = "return document.querySelector('[role=treeitem][aria-selected=true]')?.getAttribute('aria-expanded')"
    before = page.script(row)
    page.press("\ue012" if before == "true" else "\ue014")
    assert {before, page.script(row)} == {"true", "false"}


def test_search_in_the_graph_goes_from_one_to_the_next(page):
    page.go("graph/0")
    page.press("gelu", on=".filter")
    assert "2 found" in page.text("main header [role=status]")
    page.press("\ue007", on=".filter")
    assert "1 of 2" in page.text("main header [role=status]")
    assert "aten.gelu.default" in page.text(".detail")
    page.press("\ue007", on=".filter")
    assert "2 of 2" in page.text("main header [role=status]")


def test_search_over_everything_is_a_key_away(page):
    page.press("/", on="body")
    page.press("softmax")
    page.wait_for("return document.querySelectorAll('.results button').length > 1")
    page.press("\ue007")
    page.wait_for("return location.hash.startsWith('#kernels/') && document.querySelector('.step-head') !== null")
    assert "_softmax" in page.text(".step-head")


def test_pointing_at_a_node_lights_up_its_line_its_loops_and_its_code(page):
    page.go("kernels/0.0")
    page.tell("[data-column=nodes] .node-row", "mouseover")
    for column in ("source", "nodes", "loops", "code"):
        assert page.count(f"[data-column={column}] .lit") > 0
    page.tell(".columns", "mouseleave")
    assert page.count(".columns .lit") == 0
    page.script("document.querySelector('[data-column=source] .used').focus()")
    assert page.count("[data-column=code] .lit") > 0


def test_the_code_of_a_kernel_stands_beside_the_users_line(page):
    page.go("kernels/0.2")
    assert "hidden = F.gelu(self.up(self.norm(x)))" in page.text("[data-column=source] .used")
    assert "erf" in page.text("[data-column=loops]")
    assert "#pragma omp" in page.text("[data-column=code]")


def test_arrow_keys_walk_the_steps(page):
    page.go("kernels/0.0")
    page.script("document.querySelector('.v-list').focus()")
    page.press("\ue015")
    assert page.script("return location.hash") == "#kernels/0.1"


def test_numbers_and_brackets_change_the_section(page):
    page.press("3]", on="body")
    assert page.script("return location.hash.split('/')[0]") == "#kernels"
    page.press("[[", on="body")
    assert page.script("return location.hash") == "#compare"


def test_light_and_dark(page):
    before = page.script("return getComputedStyle(document.body).backgroundColor")
    page.press("t", on="body")
    assert page.script("return getComputedStyle(document.body).backgroundColor") != before


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_everything_can_be_read_and_nothing_is_cut_off(page, theme):
    page.script("document.documentElement.dataset.theme = arguments[0]", theme)
    titles = page.script("return [...document.querySelectorAll('nav a')].map(each => each.hash.slice(1))")
    found = {}
    for title in titles:
        page.go(title)
        # Colours fade from one to the other.
        time.sleep(0.2)
        found[title] = page.script(READABLE)
    assert found == {title: [] for title in titles}


def test_kernels_open_at_the_one_that_costs_most(page):
    page.go("kernels")
    times = "return precastPage.graph.steps.map(step => step.seconds)"
    shown = int(page.script("return location.hash.split('.')[1]"))
    assert page.script(times)[shown] == max(page.script(times))
    assert page.count(".v-row[aria-selected=true]") == 1


def test_the_flame_chart_zooms_into_what_is_clicked(page):
    page.go("time")
    frames = page.count(".flame .frame")
    assert frames > 10
    page.tell(".flame .frame:not(.module)", "click")
    assert page.count(".flame .frame") < frames
    page.press("0", on=".flame")
    assert page.count(".flame .frame") == frames


def test_the_peak_of_memory_is_taken_apart(page):
    page.go("memory/0")
    assert "the peak" in page.text()
    together = page.script("const facts = [...document.querySelectorAll('.facts dd')]; return facts.at(-1).innerText")
    page.press("\ue011", on="[role=slider]")
    assert page.text().count("Step 0") == 1
    assert together


def test_passes_show_before_and_after(page):
    page.go("passes")
    assert page.count(".removed") > 0
    assert page.count(".added") > 0


def test_two_reports_are_compared(page):
    page.go("compare")
    text = page.text()
    assert "One call" in text
    assert "new" in page.script("return [...document.querySelectorAll('.chip')].map(each => each.textContent)")
    assert "+ x: float32[8, 16]" not in text


def test_graph_breaks_are_told(browser, tmp_path):
    with torch.no_grad():
        broken = Page(browser, precast.report(Deciding(), torch.ones(2, 4), path=tmp_path / "broken.html", calls=1))
    broken.go("breaks")
    assert "if x.sum() > 0" in broken.text()
    assert broken.complaints() == []


def test_thousands_of_nodes_are_drawn_as_far_as_they_are_in_sight(browser, tmp_path):
    report = collect(Network(blocks=80), (torch.ones(8, 16),), {}, calls=0)
    assert sum(len(graph.nodes) for graph in report.graphs) > 3000
    page = Page(browser, write_page(report, tmp_path / "long.html"))
    page.go("graph")
    page.script("[...document.querySelectorAll('.tool')].find(each => each.textContent === 'Unfold all').click()")
    assert page.script("return document.querySelectorAll('[role=treeitem]').length") < 200
    page.script("precastPage.main.querySelector('svg').dispatchEvent(new KeyboardEvent('keydown', {key: '+'}))")
    assert page.complaints() == []


def test_a_package_shows_entries_targets_and_weights(browser, tmp_path):
    path = precast.package(Network(), (torch.ones(8, 16),), path=tmp_path / "network.precast")
    from precast.report.package_contents import package_report

    page = Page(browser, write_page(package_report(path), tmp_path / "package.html"))
    text = page.text()
    for word in ("forward(x: f32[8, 16])", "runs here", "native/native/model.so", "blocks.0.up.weight"):
        assert word in text
    page.go("graph")
    assert page.count(".box") > 3
    assert page.complaints() == []


@pytest.mark.models
def test_a_page_for_bert_is_small_and_soon_there(browser, tmp_path):
    from transformers import BertConfig, BertModel

    words = torch.zeros(1, 32, dtype=torch.int64)
    path = precast.report(BertModel(BertConfig()), words, path=tmp_path / "bert.html", calls=1)
    assert path.stat().st_size < 5 * 2**20
    page = Page(browser, path)
    assert page.script("return performance.now()") < 2000
    before = page.script("return performance.now()")
    page.go("graph/0")
    assert page.count(".box") > 3
    assert page.script("return performance.now()") - before < 2000
    assert page.complaints() == []
