"""Runs the packages in a folder on a GPU without torch: ``python -m benchmarks.gpu.run_packages FOLDER``

Prints a line of JSON for each: how far its results are from double precision, and what a call takes.
"""

import json
import statistics
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import numpy as np

sys.modules["torch"] = None  # type: ignore[assignment]

import precast.runtime  # noqa: E402


def main() -> None:
    for path in sorted(Path(sys.argv[1]).glob("*.npz")):
        try:
            found = run(path.with_suffix(".precast"), np.load(path))
        except Exception:  # noqa: BLE001  # told, and the next one is tried
            found = {"right": False, "problem": traceback.format_exc(limit=-8)[-2500:]}
        print(json.dumps({"case": path.stem, "what": "without torch", **found}), flush=True)


def run(path: Path, stored: Any) -> dict[str, Any]:
    started = time.perf_counter()
    loaded = precast.runtime.load(path, device="cuda")
    opened = time.perf_counter()
    names = sorted((each for each in stored.files if each.startswith("input")), key=lambda each: int(each[6:]))
    args = [stored[name] for name in names]
    results = leaves(loaded(*args))
    first = time.perf_counter()
    errors = [far(each, stored[f"exact {number}"]) for number, each in enumerate(results)]
    spans = []
    for _ in range(10):
        begun = time.perf_counter()
        loaded(*args)
        spans.append(1000 * (time.perf_counter() - begun))
    right = all(error <= limit for error, limit in zip(errors, stored["limits"], strict=True))
    times = {"load": 1000 * (opened - started), "first": 1000 * (first - opened), "call": statistics.median(spans)}
    return {"right": bool(right), "errors": errors, "ms": times}


def leaves(value: Any) -> list[Any]:
    """Arrays in what a model returned, in the order in which torch finds them."""
    if isinstance(value, dict):
        return [leaf for each in value.values() for leaf in leaves(each)]
    if isinstance(value, tuple | list):
        return [leaf for each in value for leaf in leaves(each)]
    if isinstance(value, np.ndarray):
        return [value]
    return [leaf for each in vars(value).values() for leaf in leaves(each)] if hasattr(value, "__dict__") else []


def far(mine: Any, true: Any) -> float:
    if mine.dtype == np.uint16:
        mine = (mine.astype(np.uint32) << 16).view(np.float32)
    return float(np.abs(mine.astype(np.float64) - true).max())


if __name__ == "__main__":
    main()
