"""Losses over steps as an SVG drawing: every step faint, a running mean over it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from xml.sax.saxutils import escape

WIDTH, HEIGHT, MARGIN = 720, 360, 56
_TICKS = 5


def loss_curve(steps: Sequence[int], losses: Sequence[float], *, title: str) -> str:
    """The drawing as text; losses that are no numbers are left out."""
    points = [(step, loss) for step, loss in zip(steps, losses, strict=True) if math.isfinite(loss)]
    xs, ys = [step for step, _ in points] or [0], [loss for _, loss in points] or [0.0]
    across = _Axis(min(xs), max(xs), MARGIN, WIDTH - 16)
    up = _Axis(min(ys), max(ys), HEIGHT - MARGIN, 32)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" font-family="sans-serif" '
        'font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{WIDTH / 2}" y="18" text-anchor="middle">{escape(title)}</text>',
    ]
    for value in up.ticks():
        y = up.place(value)
        parts.append(f'<line x1="{MARGIN}" y1="{y:.1f}" x2="{WIDTH - 16}" y2="{y:.1f}" stroke="#ddd"/>')
        parts.append(f'<text x="{MARGIN - 6}" y="{y + 4:.1f}" text-anchor="end">{value:.4g}</text>')
    for value in across.ticks():
        x = across.place(value)
        parts.append(f'<text x="{x:.1f}" y="{HEIGHT - MARGIN + 18}" text-anchor="middle">{value:.0f}</text>')
    parts.append(f'<text x="{WIDTH / 2}" y="{HEIGHT - 12}" text-anchor="middle">step</text>')
    for values, style in (
        (ys, 'stroke="#9bc" stroke-width="1"'),
        (_running_mean(ys), 'stroke="#036" stroke-width="2"'),
    ):
        line = " ".join(f"{across.place(x):.1f},{up.place(y):.1f}" for x, y in zip(xs, values, strict=True))
        parts.append(f'<polyline fill="none" {style} points="{line}"/>')
    return "\n".join([*parts, "</svg>", ""])


class _Axis:
    """Values from ``low`` to ``high`` on a line of pixels."""

    def __init__(self, low: float, high: float, start: float, end: float) -> None:
        self._low, self._high = low, high if high > low else low + 1
        self._start, self._end = start, end

    def place(self, value: float) -> float:
        return self._start + (value - self._low) / (self._high - self._low) * (self._end - self._start)

    def ticks(self) -> list[float]:
        return [self._low + (self._high - self._low) * number / (_TICKS - 1) for number in range(_TICKS)]


def _running_mean(values: Sequence[float]) -> list[float]:
    share = min(1.0, 10 / max(len(values), 1))
    found, mean = [], values[0]
    for value in values:
        mean += share * (value - mean)
        found.append(mean)
    return found
