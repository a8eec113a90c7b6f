"""Writes the tables where people read them: ``docs/benchmarks.md``, and the short one in ``README.md``.

Every thread count has its own results file in ``docs/benchmarks/``; the pages are made from all of them.
"""

from pathlib import Path

from benchmarks.peers import results, tables
from benchmarks.peers.results import Run

ROOT = Path(__file__).parents[2]
BEGIN, END = "<!-- benchmarks: written by `make bench PUBLISH=1` -->", "<!-- end of benchmarks -->"


def publish(run: Run, root: Path = ROOT) -> None:
    """Keep the run's numbers and write the pages anew."""
    folder = root / "docs" / "benchmarks"
    results.save(run, folder / f"threads-{run.threads}.json")
    runs = [results.load(path) for path in sorted(folder.glob("threads-*.json"))]
    replace_between_marks(root / "docs" / "benchmarks.md", "\n\n".join(_section(each) for each in runs))
    replace_between_marks(root / "README.md", "\n\n".join(_short_section(each) for each in runs))


def replace_between_marks(page: Path, text: str) -> None:
    """Put the text between the page's two marks."""
    before, _, rest = page.read_text().partition(BEGIN)
    _, end, after = rest.partition(END)
    assert end, f"{page.name} has no marks to write between"
    page.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{after}")


def _section(run: Run) -> str:
    facts = "\n".join(f"- {name}: {value}" for name, value in run.machine.items())
    missing = f"\n\nNot measured for lack of time: {', '.join(run.left_out)}." if run.left_out else ""
    return f"## {_threads(run)}, {run.date}\n\n{facts}{missing}\n\n{tables.all_tables(run)}"


def _short_section(run: Run) -> str:
    what = "Precast (inference with `freeze`, as in packages), the fastest of its peers, and their ratio."
    return f"{what}\n{_threads(run)}, {run.machine['processor']}, {run.date}:\n\n{tables.summary_table(run)}"


def _threads(run: Run) -> str:
    return "One thread" if run.threads == 1 else f"{run.threads} threads"
