"""A small line drawing as SVG text."""

from collections.abc import Sequence
from html import escape

_WIDTH, _HEIGHT, _MARGIN = 640, 400, 70
_STYLE = "font-family:sans-serif;font-size:12px"
_PREFIXES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def plot_steps(points: Sequence[tuple[float, float]], *, title: str, x_label: str, y_label: str) -> str:
    """Return an SVG of ``points`` joined in order of x, both axes starting at zero."""
    ordered = sorted(points)
    right = max((x for x, _ in ordered), default=0) or 1
    top = max((y for _, y in ordered), default=0) or 1
    placed = [(_place(x / right, _WIDTH), _HEIGHT - _place(y / top, _HEIGHT)) for x, y in ordered]
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in placed)
    marks = [
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3"><title>{_short(value[0])}, {_short(value[1])}</title></circle>'
        for (x, y), value in zip(placed, ordered, strict=True)
    ]
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" style="{_STYLE}">',
            _text(_WIDTH / 2, 24, title),
            _text(_WIDTH / 2, _HEIGHT - 20, f"{x_label} (up to {_short(right)})"),
            _text(_MARGIN, _MARGIN - 18, f"{y_label} (up to {_short(top)})"),
            f'<path d="M{_MARGIN},{_MARGIN} V{_HEIGHT - _MARGIN} H{_WIDTH - _MARGIN}" fill="none" stroke="gray"/>',
            f'<polyline points="{line}" fill="none" stroke="black"/>',
            *marks,
            "</svg>",
        ]
    )


def _place(share: float, length: int) -> float:
    return _MARGIN + share * (length - 2 * _MARGIN)


def _text(x: float, y: float, words: str) -> str:
    return f'<text x="{x:.0f}" y="{y:.0f}" text-anchor="middle">{escape(words)}</text>'


def _short(value: float) -> str:
    for factor, prefix in _PREFIXES:
        if value >= factor:
            return f"{value / factor:.3g}{prefix}"
    return f"{value:.3g}"
