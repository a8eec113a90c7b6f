"""One contender on one model: ``python -m benchmarks.gpu.contender MODEL CONTENDER OUT``; a line of JSON a number.

Contenders compile side by side, which takes most of the time, and take turns when the device is timed.
"""

import fcntl
import json
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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


def train(workload: Workload, name: str, turn: Callable[[], Any]) -> dict[str, Any]:
    call = compiled(name, workload.model)
    started = time.perf_counter()
    step = training_step(workload, call)
    loss = step()
    torch.cuda.synchronize()
    first = time.perf_counter() - started
    for _ in range(8):
        step()
    with turn():
        torch.cuda.reset_peak_memory_stats()
        milliseconds = median_milliseconds(step, warm=3)
        peaks = {"peak": torch.cuda.max_memory_allocated() >> 20, "reserved": torch.cuda.max_memory_reserved() >> 20}
        on_host = _host_milliseconds(step)
    return {"ms": milliseconds, "host_ms": on_host, "first_s": first, "loss": loss.item(), **peaks}


def infer(workload: Workload, name: str, turn: Callable[[], Any]) -> dict[str, Any]:
    workload.model.eval()
    call = compiled(name, workload.model.model)
    started = time.perf_counter()
    workload.infer(call)
    torch.cuda.synchronize()
    first = time.perf_counter() - started
    for _ in range(8):
        workload.infer(call)
    with turn():
        return {"ms": median_milliseconds(lambda: workload.infer(call)), "first_s": first}


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
    folder = Path(out)

    @contextmanager
    def turn() -> Iterator[None]:
        with (folder / "turn.lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def tell(what: str, measure: Callable[[], dict[str, Any]]) -> None:
        try:
            found = measure()
        except Exception:  # noqa: BLE001  # told, and the next one is measured
            found = {"problem": traceback.format_exc(limit=-10)[-3000:]}
        with (folder / "bench.jsonl").open("a") as file:
            file.write(json.dumps({"model": model, "contender": name, "what": what, **found}) + "\n")
        print(model, name, what, {key: value for key, value in found.items() if key != "problem"} or found, flush=True)

    tell("training", lambda: train(make(model), name, turn))
    if name in ("precast", "eager", "reduce-overhead"):
        torch.cuda.empty_cache()
        tell("inference", lambda: infer(make(model), name, turn))
        tell("inference of one", lambda: infer(make(model, batch=1), name, turn))


if __name__ == "__main__":
    main()
