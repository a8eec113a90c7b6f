"""GFLOP/s of matrix products by weights, over rows, threads and types: eager, Precast, and Precast with constants.

A call multiplies by several matrices of one shape, so that weights come from memory as they do in a model.

    python -m benchmarks.products
    python -m benchmarks.products --threads 1 16 --rows 1 128 --types float32 bfloat16
"""

import argparse
import os
import time
from collections.abc import Callable, Sequence

import torch
from torch import nn

import precast

SHAPES = [(768, 768), (3072, 768), (768, 3072)]
"""Columns and depth: the linear layers of BERT-base."""
WEIGHT_BYTES = 2**26
"""Together the weights are about as large, at least two of them."""
TURNS, SLICE_SECONDS = 5, 0.05


class Products(nn.Module):
    """One input by each of several weights."""

    def __init__(self, columns: int, depth: int, dtype: torch.dtype) -> None:
        super().__init__()
        count = max(2, min(12, WEIGHT_BYTES // (columns * depth * dtype.itemsize)))
        self.layers = nn.ModuleList(nn.Linear(depth, columns, dtype=dtype) for _ in range(count))

    def forward(self, rows: torch.Tensor) -> list[torch.Tensor]:
        return [layer(rows) for layer in self.layers]


def gigaflops(rows: int, columns: int, depth: int, dtype: torch.dtype) -> dict[str, float]:
    """What each contender reaches in the best of its slices; they take turns."""
    torch.manual_seed(0)
    model, left = Products(columns, depth, dtype), torch.randn(rows, depth, dtype=dtype)
    calls: dict[str, Callable[[torch.Tensor], object]] = {
        "eager": model,
        "precast": precast.compile(model, dynamic=False),
        "measured": precast.compile(model, dynamic=False, options={"measure": True}),
        "frozen": precast.compile(model, dynamic=False, options={"freeze": True}),
    }
    flops = 2 * rows * columns * depth * len(model.layers)
    best = dict.fromkeys(calls, float("inf"))
    with torch.no_grad():
        for _ in range(TURNS):
            for name, call in calls.items():
                call(left)
                end = time.perf_counter() + SLICE_SECONDS
                while (started := time.perf_counter()) < end:
                    call(left)
                    best[name] = min(best[name], time.perf_counter() - started)
    return {name: flops / seconds / 1e9 for name, seconds in best.items()}


def main(arguments: Sequence[str] | None = None) -> None:
    """Print one line for each size, type and number of threads."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.products", description=__doc__.splitlines()[0])
    cores = len(os.sched_getaffinity(0))
    parser.add_argument("--threads", nargs="+", type=int, default=sorted({1, 2, cores}))
    parser.add_argument("--rows", nargs="+", type=int, default=[1, 8, 128, 1024])
    parser.add_argument("--types", nargs="+", default=["float32", "bfloat16"])
    chosen = parser.parse_args(arguments)
    for name in chosen.types:
        for threads in chosen.threads:
            torch.set_num_threads(threads)
            for rows in chosen.rows:
                for columns, depth in SHAPES:
                    found = gigaflops(rows, columns, depth, getattr(torch, name))
                    what = f"{name} {threads:2d} threads {rows:5d} x {columns:4d} x {depth:4d}"
                    print(f"{what}  " + "  ".join(f"{who} {speed:7.1f}" for who, speed in found.items()), flush=True)


if __name__ == "__main__":
    main()
