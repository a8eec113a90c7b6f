"""One contender on one model: ``python -m benchmarks.gpu.contender MODEL CONTENDER OUT``; a line of JSON a number.

Contenders compile and warm up side by side, which takes most of the time; when all are done, they are timed in turns.
"""

import fcntl
import json
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks.gpu.workloads import Workload, make, median_milliseconds, training_step

MODES = {"compile": "default", "reduce-overhead": "reduce-overhead", "max-autotune": "max-autotune"}
CONTENDERS = ("precast", "eager", *MODES)


def compiled(name: str, model: nn.Module) -> Callable[..., torch.Tensor]:
    """The model as a contender runs it."""
    if name == "eager":
        return model
    if name == "precast":
        import precast

        return precast.compile(model)
    return torch.compile(model, mode=MODES[name])


Measure = Callable[[], dict[str, Any]]


def train(workload: Workload, name: str) -> Measure:
    """Compile and warm up; what is returned measures."""
    call = compiled(name, workload.model)
    started = time.perf_counter()
    step = training_step(workload, call)
    loss = step().item()
    torch.cuda.synchronize()
    found = {"first_s": time.perf_counter() - started, "loss": loss}
    for _ in range(8):
        step()
    torch.cuda.reset_peak_memory_stats()
    step()
    found |= {"peak": torch.cuda.max_memory_allocated() >> 20, "reserved": torch.cuda.max_memory_reserved() >> 20}
    return lambda: {"ms": median_milliseconds(step, warm=3), "host_ms": _host_milliseconds(step), **found}


def infer(workload: Workload, name: str) -> Measure:
    workload.model.eval()
    call = compiled(name, workload.model.model)
    started = time.perf_counter()
    workload.infer(call)
    torch.cuda.synchronize()
    first = time.perf_counter() - started
    for _ in range(8):
        workload.infer(call)
    return lambda: {"ms": median_milliseconds(lambda: workload.infer(call)), "first_s": first}


def _host_milliseconds(call: Callable[[], object]) -> float:
    """How long the host is busy with a call, while the device has enough to do."""
    torch.cuda.synchronize()
    started = time.perf_counter()
    for _ in range(5):
        call()
    busy = (time.perf_counter() - started) / 5 * 1000
    torch.cuda.synchronize()
    return busy


def main() -> None:
    model, name, out = sys.argv[1:4]
    warnings.simplefilter("ignore")
    lock = (Path(out) / "turn.lock").open("w")

    def attempt(what: str, run: Callable[[], Any]) -> Any:
        try:
            return run()
        except Exception:  # noqa: BLE001  # told, and the next one is measured
            tell(what, {"problem": traceback.format_exc(limit=-10)[-3000:]})

    def tell(what: str, found: dict[str, Any]) -> None:
        with (Path(out) / "bench.jsonl").open("a") as file:
            file.write(json.dumps({"model": model, "contender": name, "what": what, **found}) + "\n")
        print(model, name, what, found, flush=True)

    prepared = {"training": lambda: train(make(model), name)}
    if name in ("precast", "eager", "reduce-overhead"):
        prepared["inference"] = lambda: infer(make(model), name)
        prepared["inference of one"] = lambda: infer(make(model, batch=1), name)
    fcntl.flock(lock, fcntl.LOCK_SH)
    measures = {what: attempt(what, prepare) for what, prepare in prepared.items()}
    # Once nobody compiles or warms up any more: the device does nothing else then.
    fcntl.flock(lock, fcntl.LOCK_EX)
    for what, measure in measures.items():
        found = measure and attempt(what, measure)
        if found:
            tell(what, found)


if __name__ == "__main__":
    main()
