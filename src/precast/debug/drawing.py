"""Draws graphs: SVG by graphviz or, without it, by our own layout; PDF and PNG by graphviz; DOT as text."""

import re
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from pathlib import Path
from xml.sax.saxutils import escape

from torch import fx

from precast.backend import CompilerFunction
from precast.debug.layered_layout import Box, Picture, Point, lay_out_boxes, picture_of
from precast.debug.unchanged import python_text
from precast.errors import InputValueError, ToolMissingError
from precast.graph.compilation import get_aot_graph_name, kind_of_graph

FILL = {"input": "#e3eefb", "attribute": "#eeeeee", "operation": "#fdf6e3", "output": "#e6f4e6"}


def dot_text(picture: Picture) -> str:
    """Return the picture as DOT text."""
    lines = ["digraph graph_module {", '  node [shape=box, style="rounded,filled", fontname="monospace", fontsize=10];']
    lines += [f"  n{number} {_attributes(box)};" for number, box in enumerate(picture.boxes)]
    lines += [f"  n{source} -> n{target};" for source, target in picture.arrows]
    return "\n".join([*lines, "}"]) + "\n"


def _attributes(box: Box) -> str:
    label = "\\n".join(_quoted(line) for line in box.lines)
    return f'[label="{label}", tooltip="{_quoted(box.tooltip)}", fillcolor="{FILL[box.kind]}"]'


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


_CHARACTER_WIDTH, _LINE_HEIGHT, _PADDING = 7.3, 16.0, 8.0
_NOT_IN_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")

_HEAD = """<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" \
viewBox="0 0 {width:.0f} {height:.0f}">
<style>
text {{ font: 12px monospace; text-anchor: middle; fill: #222 }}
.name {{ font-weight: bold }}
rect {{ stroke: #777; rx: 5px }}
path.arrow {{ fill: none; stroke: #888; stroke-width: 1.2; marker-end: url(#head) }}
path.far {{ stroke: #e4e4e4 }}
</style>
<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">\
<path d="M0,0 L8,4 L0,8 z" fill="#888"/></marker></defs>
<rect width="100%" height="100%" style="fill: white; stroke: none"/>"""


def svg_text(picture: Picture) -> str:
    """Return the picture as an SVG document."""
    layout = lay_out_boxes([_size(box) for box in picture.boxes], picture.arrows)
    parts = [_HEAD.format(width=layout.width, height=layout.height)]
    for number, route in sorted(enumerate(layout.routes), key=lambda item: item[0] not in layout.far):
        parts.append(f'<path class="{"far arrow" if number in layout.far else "arrow"}" d="{_curve(route)}"/>')
    for box, centre in zip(picture.boxes, layout.centres, strict=True):
        parts += _draw(box, centre)
    return "\n".join([*parts, "</svg>"]) + "\n"


def _size(box: Box) -> Point:
    longest = max(len(line) for line in box.lines)
    return longest * _CHARACTER_WIDTH + 2 * _PADDING, len(box.lines) * _LINE_HEIGHT + _PADDING


def _draw(box: Box, centre: Point) -> Iterator[str]:
    (x, y), (width, height) = centre, _size(box)
    yield f"<g><title>{_escaped(box.tooltip)}</title>"
    place = f'x="{x - width / 2:.1f}" y="{y - height / 2:.1f}" width="{width:.1f}" height="{height:.1f}"'
    yield f'<rect {place} fill="{FILL[box.kind]}"/>'
    for number, line in enumerate(box.lines):
        baseline = y - height / 2 + _PADDING / 2 + (number + 0.75) * _LINE_HEIGHT
        role = ' class="name"' if number == 0 else ""
        yield f'<text x="{x:.1f}" y="{baseline:.1f}"{role}>{_escaped(line)}</text>'
    yield "</g>"


def _curve(route: tuple[Point, ...]) -> str:
    """Return a path that leaves and enters every point vertically."""
    (x, y), *rest = route
    path = [f"M{x:.1f},{y:.1f}"]
    for next_x, next_y in rest:
        middle = (y + next_y) / 2
        path.append(f"C{x:.1f},{middle:.1f} {next_x:.1f},{middle:.1f} {next_x:.1f},{next_y:.1f}")
        x, y = next_x, next_y
    return " ".join(path)


def _escaped(text: str) -> str:
    return escape(_NOT_IN_XML.sub("\ufffd", text))


# Graphviz has a better layout for small graphs, but takes minutes for large ones.
_GRAPHVIZ_SECONDS = 20.0


def draw_graph(graph_module: fx.GraphModule, path: str | Path, clear_meta: bool = True) -> Path:
    """Draw the graph to a file and return its path; the suffix selects the format (SVG if there is none).

    With ``clear_meta=False`` each box also shows the value's type and module, and its source line as a tooltip.
    """
    path = Path(path)
    if not path.suffix:
        path = path.with_suffix(".svg")
    writer = _WRITERS.get(path.suffix.lower())
    if writer is None:
        raise InputValueError(
            f"cannot draw a graph as {path.suffix!r}",
            why=f"known suffixes: {', '.join(_WRITERS)}",
            fix=f"write {path.with_suffix('.svg')}",
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    writer(graph_module, path, clear_meta)
    return path


def draw_graph_compile(name: str) -> CompilerFunction:
    """Return a compiler that draws the graph to the file ``name``, prints its code, and returns it unchanged.

    Further graphs, such as the backward, are drawn to files beside it: ``name_backward``.
    """
    drawn: set[Path] = set()

    def draw_and_run(graph_module: fx.GraphModule, example_inputs: Sequence[object]) -> fx.GraphModule:
        print(python_text(graph_module))
        drawn.add(path := next(path for path in _names(Path(name)) if path not in drawn))
        draw_graph(graph_module, path)
        return graph_module

    return draw_and_run


def _names(path: Path) -> Iterator[Path]:
    """The path itself, then with the kind of graph that is being compiled, then numbered ones."""
    kind = kind_of_graph(get_aot_graph_name())
    yield path
    yield path.with_stem(f"{path.stem}_{kind}")
    yield from (path.with_stem(f"{path.stem}_{kind}_{number}") for number in count(2))


def _write_dot(graph_module: fx.GraphModule, path: Path, clear_meta: bool) -> None:
    path.write_text(dot_text(picture_of(graph_module, clear_meta=clear_meta)), encoding="utf-8")


def _write_svg(graph_module: fx.GraphModule, path: Path, clear_meta: bool) -> None:
    picture = picture_of(graph_module, clear_meta=clear_meta)
    if not (shutil.which("dot") and _run_graphviz(dot_text(picture), path, time_limit=_GRAPHVIZ_SECONDS)):
        path.write_text(svg_text(picture), encoding="utf-8")


def _write_by_graphviz(graph_module: fx.GraphModule, path: Path, clear_meta: bool) -> None:
    if shutil.which("dot") is None:
        raise ToolMissingError(
            f"cannot draw {path.name}: the program 'dot' is not installed",
            why=f"graphviz writes {path.suffix[1:].upper()} files; SVG and DOT need no program",
            fix=f"install the package 'graphviz' (apt-get install graphviz), or write {path.with_suffix('.svg').name}",
        )
    _run_graphviz(dot_text(picture_of(graph_module, clear_meta=clear_meta)), path, time_limit=None)


def _run_graphviz(text: str, path: Path, *, time_limit: float | None) -> bool:
    """Whether graphviz drew the file in time."""
    command = ["dot", f"-T{path.suffix[1:].lower()}", "-o", str(path)]
    try:
        subprocess.run(command, input=text, encoding="utf-8", check=True, timeout=time_limit)
    except subprocess.TimeoutExpired:
        return False
    return True


_WRITERS: dict[str, Callable[[fx.GraphModule, Path, bool], None]] = {
    ".svg": _write_svg,
    ".dot": _write_dot,
    ".pdf": _write_by_graphviz,
    ".png": _write_by_graphviz,
}
