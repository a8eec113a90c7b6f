"""Draws losses over steps as SVG: every step faintly, with a running mean."""

from __future__ import annotations

import math
from collections.abc import Sequence

from precast.runtime.line_drawing import Line, draw_lines


def loss_curve(steps: Sequence[int], losses: Sequence[float], *, title: str) -> str:
    """The drawing as text; losses that are not finite are omitted."""
    points = [(float(step), loss) for step, loss in zip(steps, losses, strict=True) if math.isfinite(loss)]
    means = _running_mean([loss for _, loss in points])
    smooth = [(step, mean) for (step, _), mean in zip(points, means, strict=True)]
    return draw_lines([Line(points, "#9bc", 1), Line(smooth, "#036", 2)], title=title, x_label="step", y_label="loss")


def _running_mean(values: Sequence[float]) -> list[float]:
    share = min(1.0, 10 / max(len(values), 1))
    found, mean = [], values[0] if values else 0.0
    for value in values:
        mean += share * (value - mean)
        found.append(mean)
    return found
