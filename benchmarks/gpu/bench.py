"""Training steps and inference on a GPU beside eager and torch.compile: ``python -m benchmarks.gpu.bench [--publish]``

Writes ``bench.jsonl`` and ``bench.md`` to ``--out``; with ``--publish``, also to ``docs/benchmarks/``.
"""

import argparse
import json
import math
import os
import platform
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu.contender import CONTENDERS
from benchmarks.gpu.workloads import BATCHES

SIDE_BY_SIDE = 8
DOCS = Path(__file__).parents[2] / "docs" / "benchmarks"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", default=os.environ.get("OUT", "gpu-results"))
    parser.add_argument("--models", nargs="*", default=list(BATCHES))
    parser.add_argument("--contenders", nargs="*", default=list(CONTENDERS))
    parser.add_argument("--seconds", type=float, default=3600, help="begin nothing after so long")
    parser.add_argument("--publish", action="store_true")
    told = parser.parse_args()
    if not torch.cuda.is_available():
        print("no GPU: nothing is measured")
        return
    out = Path(told.out)
    out.mkdir(parents=True, exist_ok=True)
    (out / "bench.jsonl").unlink(missing_ok=True)
    jobs = [(model, contender) for contender in told.contenders for model in told.models]
    run_all(jobs, out, time.monotonic() + told.seconds)
    rows = [json.loads(line) for line in (out / "bench.jsonl").read_text().splitlines()]
    text = table(rows, " ".join(sys.argv[1:]))
    print(text)
    (out / "bench.md").write_text(text)
    if told.publish:
        runs = [{"command": f"python -m benchmarks.gpu.bench {' '.join(sys.argv[1:])}", "rows": rows}]
        (DOCS / "gpu.json").write_text(json.dumps({"machine": machine(), "runs": runs}, indent=1) + "\n")
        (DOCS / "gpu.md").write_text(text)


def run_all(jobs: list[tuple[str, str]], out: Path, deadline: float) -> None:
    """Run contenders side by side, wave by wave: those of a wave are timed when all of them have compiled."""
    log = (out / "bench.log").open("a")
    for first in range(0, len(jobs), SIDE_BY_SIDE):
        if time.monotonic() > deadline:
            break
        commands = [[sys.executable, "-m", "benchmarks.gpu.contender", model, contender, str(out)]
                    for model, contender in jobs[first : first + SIDE_BY_SIDE]]  # fmt: skip
        running = [subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT) for command in commands]
        limit = min(time.monotonic() + 400, deadline + 60)
        for process in running:
            try:
                process.wait(max(1.0, limit - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()


def machine() -> dict[str, str]:
    """What the numbers were measured on."""
    import triton

    return {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "python": platform.python_version(),
    }


def table(rows: list[dict[str, Any]], arguments: str) -> str:
    """The numbers for people, ratios to the fastest mode of torch last."""
    found: dict[tuple[str, str], dict[str, dict[str, Any]]] = defaultdict(dict)
    for row in rows:
        found[row["what"], row["model"]][row["contender"]] = row
    lines = ["# GPU", "", ", ".join(f"{key} {value}" for key, value in machine().items()) + ".", ""]
    lines += [
        f"Made by `python -m benchmarks.gpu.bench {arguments}`; milliseconds, median of 20; bfloat16 autocast.",
        "",
    ]
    for what in ("training", "inference", "inference of one"):
        names = [name for name in CONTENDERS if any(key[0] == what and name in each for key, each in found.items())]
        if not names:
            continue
        lines += [
            f"## {what.capitalize()}",
            "",
            "| model | " + " | ".join(names) + " | speed-up | peak MB (of torch) |",
        ]
        lines += ["| --- " * (len(names) + 3) + "|"]
        ratios = []
        for (kind, model), each in found.items():
            if kind == what:
                cells, ratio = _cells(each, names)
                ratios += [ratio] if ratio else []
                lines.append(f"| {model} | {' | '.join(cells)} |")
        if ratios:
            geomean = math.exp(sum(map(math.log, ratios)) / len(ratios))
            lines += ["", f"Geometric mean of the speed-ups over torch's fastest mode: {geomean:.2f}."]
        lines.append("")
    firsts = [row for row in rows if row["what"] == "training" and "first_s" in row]
    lines += ["## Time to the first step, seconds", ""]
    lines += [f"- {row['model']}, {row['contender']}: {row['first_s']:.1f}" for row in sorted(firsts, key=str)]
    return "\n".join(lines) + "\n"


def _cells(row: dict[str, dict[str, Any]], names: list[str]) -> tuple[list[str], float | None]:
    """The times, the speed-up over torch's fastest mode, and the peaks of memory."""
    times = {name: row[name]["ms"] for name in names if "ms" in row.get(name, {})}
    rivals = [each for name, each in times.items() if name not in ("precast", "eager")]
    ratio = min(rivals) / times["precast"] if rivals and "precast" in times else None
    peaks = [str(row.get(name, {}).get("peak", "-")) for name in ("precast", "compile")]
    told = [f"{times[name]:.2f}" if name in times else "-" for name in names]
    return [*told, f"{ratio:.2f}" if ratio else "-", f"{peaks[0]} ({peaks[1]})"], ratio


if __name__ == "__main__":
    main()
