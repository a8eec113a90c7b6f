"""``precast doctor``: is everything here that Precast needs, and if not, what to do."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from precast.cli.machine import Finding, examine
from precast.options import Options

app = typer.Typer(add_completion=False, rich_markup_mode="markdown")


@app.command()
def doctor(
    run_only: Annotated[bool, typer.Option("--run-only", help="Leave out what only compiling needs.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Check that this machine has what Precast needs."""
    findings = [
        finding for finding in examine(Options.from_environment()) if not (run_only and finding.needed_to == "compile")
    ]
    healthy = not any(finding.is_fatal for finding in findings)
    if as_json:
        typer.echo(json.dumps({"ok": healthy, "findings": [asdict(finding) for finding in findings]}, indent=2))
    else:
        Console().print(_as_table(findings))
    if not healthy:
        raise typer.Exit(1)


def _as_table(findings: Sequence[Finding]) -> Table:
    table = Table("what", "needed to", "found", "state", "what to do", box=None, pad_edge=False)
    for finding in findings:
        advice = "" if finding.ok else finding.fix
        table.add_row(finding.name, finding.needed_to, Text(finding.found), _state(finding), Text(advice))
    return table


def _state(finding: Finding) -> Text:
    if finding.ok:
        return Text("ok", style="green")
    return Text("missing", style="red") if finding.is_fatal else Text("slow", style="yellow")
