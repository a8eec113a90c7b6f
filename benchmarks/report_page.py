"""How large the page of a report on BERT-base is, and how soon it can be used, in headless Chromium.

python -m benchmarks.report_page
"""

import tempfile
import time
from pathlib import Path

import torch
from transformers import BertConfig, BertModel

import precast
from tests.report.browser import Page, open_browser

_READY = "return performance.getEntriesByName('ready')[0].startTime"
_UNFOLD = """
const button = [...document.querySelectorAll('.tool')].find(each => each.textContent === 'Unfold all');
const began = performance.now(); button.click(); return performance.now() - began;
"""


def main() -> None:
    """Print the numbers, the best of three loads."""
    with tempfile.TemporaryDirectory() as folder, open_browser() as browser:
        began = time.perf_counter()
        words = torch.zeros(2, 64, dtype=torch.int64)
        path = precast.report(BertModel(BertConfig()), words, path=Path(folder) / "report.html", calls=0)
        print(f"written in     {time.perf_counter() - began:8.1f} s, nothing built")
        print(f"size           {path.stat().st_size / 2**20:8.2f} MiB")
        print(f"ready after    {min(Page(browser, path).script(_READY) for _ in range(3)):8.0f} ms")
        page = Page(browser, path)
        for graph in (0, 1):
            page.go(f"graph/{graph}")
            print(f"all unfolded   {page.script(_UNFOLD):8.0f} ms, {page.count('.box')} boxes in sight")


if __name__ == "__main__":
    main()
