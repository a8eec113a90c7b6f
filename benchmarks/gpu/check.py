"""Is code for GPUs right, and how fast is it? ``python -m benchmarks.gpu.check [--out FOLDER] [--only kernels graphs]``

Runs every part in a process of its own, with a limit of time, so that one that fails or hangs does not hide the others,
and tells at the end how many cases of each were right. Needs torch with CUDA, Triton, NumPy and transformers.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import torch

PARTS = 8
"""Processes that go through the operators side by side."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", default=os.environ.get("OUT", "gpu-results"))
    parser.add_argument("--only", nargs="*", default=["kernels", "graphs", "steps", "operators", "packages", "models"])
    parser.add_argument("--models", nargs="*", default=["bert", "gpt2", "resnet50", "llama"])
    parser.add_argument("--dtypes", nargs="*", default=["float32", "bfloat16"])
    told = parser.parse_args()
    if not torch.cuda.is_available():
        print("no GPU: nothing is checked")
        return
    out = Path(told.out)
    out.mkdir(parents=True, exist_ok=True)
    print(torch.__version__, torch.cuda.get_device_name(), sys.version.split()[0], flush=True)
    short = [[part] for part in ("kernels", "graphs", "steps") if part in told.only]
    if "operators" in told.only:
        short += [["operators", str(number), str(PARTS), dtype] for dtype in told.dtypes for number in range(PARTS)]
    if short:
        _run(short, out, seconds=170)
    if "packages" in told.only:
        _run([["packages"]], out, seconds=500)
    if "models" in told.only:
        _run([["models", name] for name in told.models], out, seconds=150)
    wrong = 0
    for path in sorted(out.glob("*.jsonl")):
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        counts = Counter(line.get("right") for line in lines)
        for line in (each for each in lines if each.get("right") is False):
            print(json.dumps({key: each for key, each in line.items() if key not in ("trace", "rows")})[:1500])
        print(f"{path.stem}: {counts[True]} right, {counts[False]} wrong")
        wrong += counts[False]
    sys.exit(wrong > 0)


def _run(commands: list[list[str]], out: Path, *, seconds: float) -> None:
    started = time.monotonic()
    processes = [
        subprocess.Popen([sys.executable, "-m", "benchmarks.gpu.parts", name, str(out), *arguments],
                         stdout=(out / "log.txt").open("a"), stderr=subprocess.STDOUT)
        for name, *arguments in commands
    ]  # fmt: skip
    for process in processes:
        try:
            process.wait(max(1.0, seconds - (time.monotonic() - started)))
        except subprocess.TimeoutExpired:
            process.kill()
            print(f"{commands[0][0]}: not done after {seconds} seconds")
    print(f"{commands[0]}: {time.monotonic() - started:.0f} s, {[process.poll() for process in processes]}", flush=True)


if __name__ == "__main__":
    main()
