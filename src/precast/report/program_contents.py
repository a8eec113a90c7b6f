"""The graphs of the programs in a file, for a report."""

from __future__ import annotations

from typing import Any

from precast.artifact.package import Package
from precast.export.load import program_in
from precast.report.graph_contents import GraphWriter
from precast.report.recording import Texts
from precast.report.source_excerpts import SourceLines


def program_graphs(package: Package) -> dict[str, Any]:
    """The fields of a report that describe the programs: graphs, modules and lines."""
    members = {entry.name: entry.program for entry in package.manifest.entries if entry.program is not None}
    programs = {name: program_in(package, member=member) for name, member in members.items()}
    if not package.manifest.entries:
        programs["program"] = program_in(package)
    lines = SourceLines()
    writer = GraphWriter(lines, Texts())
    graphs = tuple(
        writer.plain_graph(name, program.graph_module, program.program.signature) for name, program in programs.items()
    )
    return {"graphs": graphs, "modules": writer.modules, "lines": lines.lines(), "excerpts": lines.excerpts()}
