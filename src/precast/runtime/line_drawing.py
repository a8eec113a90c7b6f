"""Draws lines over two axes as SVG, without any library."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

WIDTH, HEIGHT = 720, 380
_LEFT, _RIGHT, _TOP, _BOTTOM = 72, 24, 40, 56
_TICKS = 6
_NEAREST_LABELS = 16.0
_PREFIXES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))

Point = tuple[float, float]


@dataclass(frozen=True)
class Line:
    """Points joined in order; ``labels``, if given, are drawn beside them."""

    points: Sequence[Point]
    colour: str = "#036"
    width: float = 2.0
    labels: Sequence[str] = ()


def draw_lines(lines: Sequence[Line], *, title: str, x_label: str, y_label: str, from_zero: bool = False) -> str:
    """The drawing as text; with ``from_zero``, both axes start at 0."""
    points = [point for line in lines for point in line.points] or [(0.0, 0.0)]
    lows = (0.0, 0.0) if from_zero else (min(x for x, _ in points), min(y for _, y in points))
    across = _Axis(lows[0], max(x for x, _ in points), _LEFT, WIDTH - _RIGHT)
    up = _Axis(lows[1], max(y for _, y in points), HEIGHT - _BOTTOM, _TOP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        _text(WIDTH / 2, 20, title, "middle", "font-weight='bold'"),
        _text(WIDTH / 2, HEIGHT - 12, x_label, "middle"),
        f'<text transform="translate(16,{HEIGHT / 2}) rotate(-90)" text-anchor="middle">{escape(y_label)}</text>',
    ]
    for value in up.ticks():
        y = up.place(value)
        parts.append(f'<line x1="{_LEFT}" y1="{y:.1f}" x2="{WIDTH - _RIGHT}" y2="{y:.1f}" stroke="#ddd"/>')
        parts.append(_text(_LEFT - 6, y + 4, short_number(value), "end"))
    for value in across.ticks():
        x = across.place(value)
        parts.append(
            f'<line x1="{x:.1f}" y1="{HEIGHT - _BOTTOM}" x2="{x:.1f}" y2="{HEIGHT - _BOTTOM + 5}" stroke="#888"/>'
        )
        parts.append(_text(x, HEIGHT - _BOTTOM + 19, short_number(value), "middle"))
    parts.append(f'<path d="M{_LEFT},{_TOP} V{HEIGHT - _BOTTOM} H{WIDTH - _RIGHT}" fill="none" stroke="#888"/>')
    for line in lines:
        parts += _drawn(line, across, up)
    return "\n".join([*parts, "</svg>", ""])


def short_number(value: float) -> str:
    """A number with a prefix.

    >>> [short_number(each) for each in (0.25, 1500, 3e9)]
    ['0.25', '1.5k', '3G']
    """
    for factor, prefix in _PREFIXES:
        if abs(value) >= factor:
            return f"{value / factor:.3g}{prefix}"
    return f"{value:.4g}"


def _drawn(line: Line, across: _Axis, up: _Axis) -> list[str]:
    places = [(across.place(x), up.place(y)) for x, y in line.points]
    joined = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    parts = [f'<polyline fill="none" stroke="{line.colour}" stroke-width="{line.width:g}" points="{joined}"/>']
    last: Point | None = None
    for (x, y), label in zip(places, line.labels, strict=False):
        parts.append(
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{line.colour}"><title>{escape(label)}</title></circle>'
        )
        # Points that are close together share one label.
        if last is None or math.dist(last, (x, y)) >= _NEAREST_LABELS:
            is_right = x > WIDTH * 0.8
            parts.append(_text(x - 6 if is_right else x + 6, y - 7, label, "end" if is_right else "start"))
            last = (x, y)
    return parts


def _text(x: float, y: float, words: str, anchor: str, more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" {more}>{escape(words)}</text>'


class _Axis:
    """Maps values from ``low`` to ``high`` to a line of pixels."""

    def __init__(self, low: float, high: float, start: float, end: float) -> None:
        self._low, self._high = low, high if high > low else low + 1
        self._start, self._end = start, end

    def place(self, value: float) -> float:
        return self._start + (value - self._low) / (self._high - self._low) * (self._end - self._start)

    def ticks(self) -> list[float]:
        """Round numbers within the range: multiples of 1, 2 or 5 times a power of ten."""
        rough = (self._high - self._low) / _TICKS
        power = 10.0 ** math.floor(math.log10(rough))
        step = next(each * power for each in (1, 2, 5, 10) if each * power >= rough)
        first, last = math.ceil(self._low / step - 1e-9), math.floor(self._high / step + 1e-9)
        return [number * step for number in range(first, last + 1)]
