"""A picture of a graph as SVG, laid out by ourselves: needs no program and no library."""

import re
from collections.abc import Iterator
from xml.sax.saxutils import escape

from precast.compilers.dot_text import FILL
from precast.compilers.graph_picture import Box, Picture
from precast.compilers.layered_layout import Point, lay_out_boxes

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
