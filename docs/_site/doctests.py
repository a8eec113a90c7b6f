"""Examples in docstrings as blocks of code: without a fence, Markdown takes ``>>>`` for nested quotations."""

import re
from typing import Any

import griffe

_EXAMPLE = re.compile(r"^>>> .*(?:\n(?!\s*$).*)*", re.MULTILINE)


def fenced(text: str) -> str:
    """The docstring with each run of lines that begins with ``>>>`` in a fence."""
    return _EXAMPLE.sub(lambda example: f"```pycon\n{example[0]}\n```", text)


class FencedDoctests(griffe.Extension):
    """Fences the examples of everything that is documented."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = fenced(obj.docstring.value)
