"""What the site has beside the pages in ``docs``.

Pages at the root of the repository (``SECURITY.md`` and others), sources that pages link to, a list of the decisions,
and plots of the benchmarks. Links between pages work in the repository as well as here: those that leave ``docs`` are
led to these pages.
"""

import posixpath
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

sys.path.insert(0, str(Path(__file__).parent))
from plots import plot

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
_MEASURED = sorted((DOCS / "benchmarks").glob("*.json"))
ROOT_PAGES = {
    "SECURITY.md": "security.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "examples/README.md": "examples.md",
}
_LINK = re.compile(r"(\]\()(?!\w+:|#)([^()\s#]+)(#[^()\s]*)?(\))")
_LANGUAGES = {".py": "python", ".c": "c", ".h": "c", ".cpp": "cpp", ".toml": "toml", ".md": "markdown", ".txt": "text"}


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that are not in ``docs``."""
    pages = {source: (ROOT / source).read_text(encoding="utf-8") for source in ROOT_PAGES}
    for source, text in pages.items():
        files.append(File.generated(config, ROOT_PAGES[source], content=text))
    for path in sorted(set(_linked_sources(pages))):
        files.append(File.generated(config, _source_page(path), content=_source_text(path)))
    files.append(File.generated(config, "decisions/index.md", content=_decisions()))
    shim = (DOCS / "_site" / "iframe-worker.js").read_text(encoding="utf-8")
    files.append(File.generated(config, "assets/iframe-worker.js", content=shim))
    for path in _MEASURED:
        files.append(File.generated(config, f"benchmarks/{path.stem}.svg", content=plot(path)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Lead links that leave ``docs`` to the pages that stand for their targets; add the plots."""
    uri = page.file.src_uri
    if uri.startswith("source/"):
        return markdown
    markdown = re.sub(r"^<!-- (?:setup\n.*?|not run: .*?)-->\n", "", markdown, flags=re.DOTALL | re.MULTILINE)
    if uri == "benchmarks.md":
        plots = [f"![{each.stem}](benchmarks/{each.stem}.svg)" for each in _MEASURED if each.stem != "gpu"]
        markdown = markdown.replace("\n<!-- benchmarks", "\n" + "\n\n".join(plots) + "\n\n<!-- benchmarks", 1)
    if uri == "benchmarks/gpu.md":
        markdown = markdown.replace("\n## ", "\n![Time of each contender, relative to Precast's](gpu.svg)\n\n## ", 1)
    here = _real_path(uri).parent

    def led(link: re.Match[str]) -> str:
        target = (here / link[2]).resolve()
        new = posixpath.relpath(_page_of(target), posixpath.dirname(uri) or ".") if target.exists() else link[2]
        return f"{link[1]}{new}{link[3] or ''}{link[4]}"

    return _LINK.sub(led, markdown)


def on_post_page(output: str, page: Any, config: Any) -> str:
    """Load the search's shim for pages that are opened as files from the site itself."""
    up = "../" * page.file.dest_uri.count("/")
    return output.replace("https://unpkg.com/iframe-worker/shim", f"{up}assets/iframe-worker.js")


def on_post_template(output: str, template_name: str, config: Any) -> str:
    """The same for the page of errors."""
    return output.replace("https://unpkg.com/iframe-worker/shim", "assets/iframe-worker.js")


def _real_path(uri: str) -> Path:
    """Where a page's text comes from, which is what its links start at."""
    return next((ROOT / source for source, page in ROOT_PAGES.items() if page == uri), DOCS / uri)


def _page_of(target: Path) -> str:
    """The page that stands for a file of the repository."""
    if target.is_relative_to(DOCS):
        return f"{target.relative_to(DOCS)}/index.md" if target.is_dir() else str(target.relative_to(DOCS))
    relative = target.relative_to(ROOT)
    return ROOT_PAGES.get(str(relative)) or ("index.md" if str(relative) == "README.md" else _source_page(target))


def _linked_sources(root_pages: dict[str, str]) -> Iterator[Path]:
    """Files and folders outside of ``docs`` that pages link to, and the files in these folders."""
    texts = [(page, page.read_text(encoding="utf-8")) for page in DOCS.glob("**/*.md")]
    texts += [(ROOT / source, text) for source, text in root_pages.items()]
    for page, text in texts:
        for link in _LINK.finditer(text):
            target = (page.parent / link[2]).resolve()
            if not target.exists() or target.is_relative_to(DOCS) or not _page_of(target).startswith("source/"):
                continue
            yield target
            if target.is_dir():
                yield from _files_in(target)


def _files_in(folder: Path) -> list[Path]:
    return [each for each in sorted(folder.iterdir()) if each.is_file() and each.suffix not in (".so", ".precast")]


def _source_page(path: Path) -> str:
    return f"source/{path.relative_to(ROOT)}.md"


def _source_text(path: Path) -> str:
    title = f"# {path.relative_to(ROOT)}\n\n"
    if path.is_dir():
        return title + "".join(f"- [{each.name}]({path.name}/{each.name}.md)\n" for each in _files_in(path))
    language = "cmake" if path.name == "CMakeLists.txt" else _LANGUAGES.get(path.suffix, "text")
    return f"{title}``````{language}\n{path.read_text(encoding='utf-8')}\n``````\n"


def _decisions() -> str:
    pages = sorted(DOCS.glob("decisions/[0-9]*.md"))
    titles = {page: page.read_text(encoding="utf-8").partition("\n")[0].lstrip("# ") for page in pages}
    listed = "".join(f"- [{title}]({page.name})\n" for page, title in titles.items())
    return f"# Decisions\n\nWhy things are as they are, oldest first.\n\n{listed}"
