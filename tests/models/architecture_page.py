"""The page of results, ``docs/architectures.md``: totals, a table of all models, and the reasons."""

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import date

from tests.models.judging import MODES, Verdict

STATUSES = ("equal", "in pieces", "with constants", "refused", "failed", "wrong", "crashed", "slow", "not judged")
_SIGNS = {
    "equal": "✓", "in pieces": "✓ in pieces", "with constants": "✓ with constants", "not judged": "not judged",
}  # fmt: skip
_INTRODUCTION = """# Architectures

Every architecture of `transformers`, made small by its configuration (`tests/models/shrinking.py`), and the smallest
model of every family of `timm`, with random weights, compared with eager:

- **forward**: `precast.compile`, one call without gradients;
- **training**: `precast.compile`, a call in training mode, the loss and the gradients of all parameters (dropout is
  zero, so that numbers can be compared, and encoders that may skip layers at random do not);
- **export**: `precast.export.export(…, branch_on_data=True)`, saved, loaded and run;
- **package**: `precast.package`, native code run by `precast.runtime`.

✓ is equal to eager, or no further from double precision than eager is; *in pieces*: with modules that run in Python,
since they cannot be captured ([graph breaks](guides/graph-breaks.md)); *with constants*: for one table of sizes of
images, which is a constant of the program and checked at each call (`constant_arguments`, [export](guides/export.md)),
since Python code decides by it. *Refused* is a `PrecastError` that names the
line, *failed* any other error, *slow* more than 60 s of processor time, the C++ compiler included. *Not judged*: eager
does not run the model as our configuration makes it, or the mode makes no sense for it. An empty cell has not been run
yet. Models that take images or sounds beside text are called with text; their parts for images and sounds are listed on
their own.

This page was written on {today} by `make architectures`, which goes on where it ended the last time.
"""


def page_of(results: Mapping[tuple[str, str], Verdict], names: Sequence[str]) -> str:
    """The whole page; models that could not be judged in any mode are listed, not shown in the table."""
    known = {name: {mode: results[name, mode] for mode in MODES if (name, mode) in results} for name in names}
    judged = {name: verdicts for name, verdicts in known.items() if _is_judged(verdicts)}
    others = {name: verdicts["forward"] for name, verdicts in known.items() if verdicts and name not in judged}
    parts = [
        _INTRODUCTION.format(today=date.today()),
        f"## Totals\n\n{_totals(known)}",
        f"## Not equal\n\n{_reasons(judged, lambda status: status not in _SIGNS)}",
        f"## In pieces\n\n{_reasons(judged, lambda status: status == 'in pieces')}",
        f"## With constants\n\n{_reasons(judged, lambda status: status == 'with constants')}",
        f"## Models\n\n{_table(judged)}",
        f"## Not judged\n\n{_not_judged(others)}",
    ]
    return "\n".join(parts)


def _is_judged(verdicts: Mapping[str, Verdict]) -> bool:
    return any(verdict.status != "not judged" for verdict in verdicts.values())


def _totals(known: Mapping[str, Mapping[str, Verdict]]) -> str:
    header = f"| library | mode | {' | '.join(STATUSES)} | not run yet |"
    lines = [header, "| --- " * (len(STATUSES) + 3) + "|"]
    for library in ("transformers", "timm"):
        mine = [verdicts for name, verdicts in known.items() if name.startswith(f"{library}/")]
        for mode in MODES:
            counts = Counter(_status(verdicts, mode) for verdicts in mine)
            numbers = [str(counts[status]) for status in (*STATUSES, "")]
            lines.append(f"| {library} | {mode} | {' | '.join(numbers)} |")
    return "\n".join(lines) + "\n"


def _status(verdicts: Mapping[str, Verdict], mode: str) -> str:
    """The status in a mode, empty where it was not run; what eager does not run is looked at once, in ``forward``."""
    forward = verdicts.get("forward", Verdict(""))
    return verdicts[mode].status if mode in verdicts else "not judged" if forward.status == "not judged" else ""


def _reasons(judged: Mapping[str, Mapping[str, Verdict]], counts: Callable[[str], bool]) -> str:
    lines = [
        f"- `{name}`, {mode}: *{verdict.status}*: {_readable(verdict.reason)}"
        for name, verdicts in judged.items()
        for mode, verdict in verdicts.items()
        if counts(verdict.status)
    ]
    return "\n".join(lines or ["Nothing."]) + "\n"


def _table(judged: Mapping[str, Mapping[str, Verdict]]) -> str:
    lines = [f"| model | {' | '.join(MODES)} |", "| --- " * (len(MODES) + 1) + "|"]
    for name, verdicts in judged.items():
        cells = [_SIGNS.get(verdicts[mode].status, verdicts[mode].status) if mode in verdicts else "" for mode in MODES]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _not_judged(others: Mapping[str, Verdict]) -> str:
    return "\n".join(f"- `{name}`: {_readable(verdict.reason)}" for name, verdict in others.items()) + "\n"


def _readable(reason: str) -> str:
    """A reason without the folders of the machine that it was found on, cut where the advice begins."""
    reason = re.sub(r"/\S*?/(site-packages|site|src)/", "", reason)
    reason = re.sub(r" (fix|Please note|Check out|You can install).*", "", reason)
    # Signs that Markdown would take for a column, a tag or a link.
    return re.sub(r"[|<\[]", lambda sign: f"\\{sign[0]}", reason[:300])
