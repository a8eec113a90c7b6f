"""Plots of what the benchmarks measured: the time of each contender relative to Precast's, for every model."""

import json
import statistics
from io import StringIO
from pathlib import Path
from typing import Any

_CONTENDERS = {
    "eager": "eager",
    "compile": "torch.compile",
    "reduce-overhead": "torch.compile, CUDA graphs",
    "onnxruntime": "ONNX Runtime",
    "openvino": "OpenVINO",
    "compile-frozen": "torch.compile",
    "precast-frozen": "Precast",
    "precast": "Precast",
}
_PRECAST = "Precast"
Times = dict[str, dict[str, float]]
"""Of each model, the least time of each contender."""


def plot(path: Path) -> str:
    """An SVG of a file of ``docs/benchmarks``; a bar above 1 is slower than Precast."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    run = json.loads(path.read_text(encoding="utf-8"))
    measured = _on_gpu(run) if "runs" in run else _on_cpu(run)
    figure, axes = pyplot.subplots(len(measured), 1, figsize=(10, 2.6 * len(measured)), squeeze=False)
    for axis, (title, times) in zip(axes[:, 0], measured.items(), strict=True):
        _plot_setting(axis, times)
        axis.set_title(title, fontsize=10, loc="left")
    figure.tight_layout()
    text = StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None})
    pyplot.close(figure)
    return text.getvalue()


def _on_cpu(run: Any) -> dict[str, Times]:
    found: dict[str, Times] = {}
    for outcome in run["outcomes"]:
        title = f"{outcome['setting']}, {run['threads']} thread{'s' * (run['threads'] > 1)}"
        for each in outcome["measurements"]:
            time = statistics.median(each["runs"]) if each["runs"] else min(each["slices"], default=None)
            _note(found.setdefault(title, {}), outcome["architecture"], each["contender"], time)
    return found


def _on_gpu(run: Any) -> dict[str, Times]:
    found: dict[str, Times] = {}
    for row in (row for each in run["runs"] for row in each["rows"]):
        title = f"{row['what']}, {run['machine']['device']}"
        _note(found.setdefault(title, {}), row["model"], row["contender"], row.get("ms"))
    return found


def _note(times: Times, model: str, contender: str, time: float | None) -> None:
    if time is not None and contender in _CONTENDERS:
        of_model, name = times.setdefault(model, {}), _CONTENDERS[contender]
        of_model[name] = min(time, of_model.get(name, time))


def _plot_setting(axis: Any, times: Times) -> None:
    there = {name for each in times.values() for name in each}
    peers = [name for name in dict.fromkeys(_CONTENDERS.values()) if name in there and name != _PRECAST]
    width = 0.8 / len(peers)
    for place, peer in enumerate(peers):
        heights = [each[peer] / each[_PRECAST] if peer in each and _PRECAST in each else 0.0 for each in times.values()]
        places = [number + (place - (len(peers) - 1) / 2) * width for number in range(len(times))]
        axis.bar(places, heights, width=0.9 * width, label=peer)
    axis.axhline(1, color="black", linewidth=0.8)
    axis.set_xticks(range(len(times)), list(times), fontsize=8)
    axis.set_ylabel("time / Precast's", fontsize=8)
    axis.legend(fontsize=7, ncols=len(peers), frameon=False)
