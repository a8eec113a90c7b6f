"""A report as one self-contained HTML page, and the data of such a page read back.

The page contains the vendored libraries, our scripts and styles from ``assets``, and the data as compressed
JSON. Scripts are written as modules, for editors and tests; here they are concatenated into one script, each
after what it imports.
"""

from __future__ import annotations

import base64
import gzip
import json
import re
from dataclasses import asdict
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

from precast.artifact.archive import write_file
from precast.errors import InputValueError, MissingFileError
from precast.report.contents import VERSION, Report

_ASSETS = files("precast.report") / "assets"
_LIBRARIES = ("dagre.min.js", "d3.min.js")
_IMPORT = re.compile(r'^import .*? from "\./(?P<file>[\w.]+)";\n', re.MULTILINE | re.DOTALL)
_DATA = re.compile(r'<script id="(?P<id>report|previous)" type="application/gzip">(?P<data>[A-Za-z0-9+/=\s]*)</script>')
_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="generator" content="Precast">
<link rel="icon" href="data:,">
<title>{title} · Precast report</title>
<style>
{styles}</style>
</head>
<body>
<noscript>This report is drawn by a script: allow scripts for this page.</noscript>
{data}
{libraries}
<script type="module">
{scripts}</script>
</body>
</html>
"""


def write_page(report: Report, path: str | Path, *, previous: dict[str, Any] | None = None) -> Path:
    """Write the page; with ``previous``, data of another report, it also shows the differences."""
    path = Path(path)
    write_file(path, [page_text(report, previous=previous).encode()])
    return path


def page_text(report: Report, *, previous: dict[str, Any] | None = None) -> str:
    """The page as text."""
    data = [_embedded("report", asdict(report))]
    if previous is not None:
        data.append(_embedded("previous", previous))
    return _PAGE.format(
        title=escape(report.title),
        styles=_asset("report.css"),
        data="\n".join(data),
        libraries="\n".join(f"<script>\n{_asset(f'vendor/{name}')}</script>" for name in _LIBRARIES),
        scripts="\n".join(_without_modules(name) for name in _in_order("main.js")),
    )


def read_page(path: str | Path) -> dict[str, Any]:
    """The data of an existing page."""
    if not Path(path).exists():
        raise MissingFileError(f"{path} does not exist", why="there is no such file", fix="check the path")
    text = Path(path).read_text(encoding="utf-8", errors="replace")
    found = next((match for match in _DATA.finditer(text) if match["id"] == "report"), None)
    if found is None:
        raise InputValueError(
            f"{path} is not a report",
            why="it does not contain the data of one",
            fix="compare with a page that precast report wrote",
        )
    data: dict[str, Any] = json.loads(gzip.decompress(base64.b64decode(found["data"])))
    if data.get("version") != VERSION:
        raise InputValueError(
            f"{path} is a report of another version",
            why=f"its data has the form {data.get('version')}, this Precast compares the form {VERSION}",
            fix="write that report again with this version",
        )
    return data


def _embedded(name: str, data: dict[str, Any]) -> str:
    packed = gzip.compress(json.dumps(data, separators=(",", ":")).encode(), compresslevel=9, mtime=0)
    text = base64.b64encode(packed).decode()
    return f'<script id="{name}" type="application/gzip">{text}</script>'


def _asset(name: str) -> str:
    text = (_ASSETS / name).read_text(encoding="utf-8")
    assert "</script" not in text, f"{name} would end the script that it is in"
    return text


def _in_order(name: str) -> list[str]:
    """A script after everything that it imports."""
    found: dict[str, None] = {}

    def visit(script: str) -> None:
        for match in _IMPORT.finditer(_asset(script)):
            if match["file"] not in found:
                visit(match["file"])
        found.setdefault(script)

    visit(name)
    return list(found)


def _without_modules(name: str) -> str:
    return re.sub(r"^export ", "", _IMPORT.sub("", _asset(name)), flags=re.MULTILINE)
