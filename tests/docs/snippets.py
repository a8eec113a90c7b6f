"""The snippets of a Markdown page, to be run from top to bottom as a reader would.

```python                       runs
```python title="model.py"      is written to that file
```sh                           runs in bash
<!-- setup                      runs, and readers do not see it
<!-- not run: why -->           before a fence: the next snippet is left out
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_PIECE = re.compile(
    r"^<!-- setup\n(?P<setup>.*?)^-->$"
    r"|^(?P<indent> *)```(?P<language>\w+)(?: title=\"(?P<title>[^\"]+)\")?[^\n]*\n(?P<code>.*?)^(?P=indent)```$",
    re.DOTALL | re.MULTILINE,
)
_NOT_RUN = re.compile(r"<!-- not run: [^\n]+ -->\s*$")


@dataclass(frozen=True)
class Snippet:
    """Code of a page: its kind is python, sh or file."""

    kind: str
    code: str
    line: int
    title: str | None = None


def snippets_of(page: Path) -> Iterator[Snippet]:
    """Everything in the page that is to be run or written, in order."""
    text = page.read_text(encoding="utf-8")
    for piece in _PIECE.finditer(text):
        line = text.count("\n", 0, piece.start()) + 2
        if piece["setup"] is not None:
            yield Snippet("python", piece["setup"], line)
        elif piece["language"] in ("python", "sh", "cmake", "c", "cpp", "toml") and not _is_left_out(text, piece):
            code = re.sub(rf"^{piece['indent']}", "", piece["code"], flags=re.MULTILINE)
            if piece["title"] is not None:
                yield Snippet("file", code, line, piece["title"])
            elif piece["language"] in ("python", "sh"):
                yield Snippet(piece["language"], code, line)


def _is_left_out(text: str, piece: re.Match[str]) -> bool:
    return _NOT_RUN.search(text[: piece.start()]) is not None
