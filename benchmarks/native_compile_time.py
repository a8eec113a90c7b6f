"""Time to the first result, cold and warm, of the native backend and of torch.compile; and how it grows with depth.

Each measurement is a process of its own with a cache folder of its own: ``cold`` starts with an empty one, ``warm``
with what the cold one left. The clock starts when torch is loaded and the model and its inputs are there, and stops
with the first result (and its gradients, when training), so it counts what each side imports, compiles, and the first
call itself. On a machine that others use too, the seconds of processor time tell more than those of the clock: the
compiler's processes are counted. ``beside the call`` leaves out what a later call takes, which is the model's own work.
Writes a table, and JSON with ``--json``.

    python benchmarks/native_compile_time.py            # everything
    python benchmarks/native_compile_time.py bert-inference --small
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

WORKLOADS = ("bert-inference", "bert-training", "gpt-12-layers", "gpt-48-layers")
BACKENDS = ("native", "torch.compile")


def make(workload: str, *, small: bool) -> tuple[torch.nn.Module, dict[str, torch.Tensor], bool]:
    """The model, the keyword arguments of a call, and whether it is trained."""
    import transformers

    torch.manual_seed(0)
    size = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4} if small else {}
    tokens = torch.randint(0, 1000, (1, 32 if small else 128))
    if workload.startswith("bert"):
        config = transformers.BertConfig(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, **size)
        return transformers.BertModel(config), {"input_ids": tokens}, workload == "bert-training"
    layers = int(workload.split("-")[1])
    narrow = {"n_embd": 64 if small else 256, "n_head": 4, "n_layer": layers}
    config = transformers.GPT2Config(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, use_cache=False, **narrow)
    return transformers.GPT2Model(config), {"input_ids": tokens}, False


def first_result(workload: str, backend: str, *, small: bool) -> dict[str, float]:
    """Seconds from the wish to compile to the first result, gradients included when training."""
    model, kwargs, is_trained = make(workload, small=small)

    def call(compiled: Any) -> None:
        if is_trained:
            compiled(**kwargs).last_hidden_state.sum().backward()
        else:
            with torch.no_grad():
                compiled(**kwargs)

    started, busy = time.perf_counter(), processor_seconds()
    if backend == "native":
        import precast

        compiled = precast.compile(model, backend="native", dynamic=False)
    else:
        compiled = torch.compile(model, dynamic=False)
    call(compiled)
    first = {"clock": time.perf_counter() - started, "processor": processor_seconds() - busy}
    later = []
    for _ in range(3):
        started, busy = time.perf_counter(), processor_seconds()
        call(compiled)
        later.append((time.perf_counter() - started, processor_seconds() - busy))
    clock, processor = map(min, zip(*later, strict=True))
    return {
        **first,
        "clock beside the call": first["clock"] - clock,
        "processor beside the call": first["processor"] - processor,
    }


def processor_seconds() -> float:
    """Processor time of this process and of those that it started and that ended."""
    spent = os.times()
    return spent.user + spent.system + spent.children_user + spent.children_system


def measured(workload: str, backend: str, folder: Path, *, small: bool) -> dict[str, float]:
    environment = {
        **os.environ,
        "PRECAST_CACHE_DIR": str(folder / "precast"),
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
        "TORCHINDUCTOR_FX_GRAPH_CACHE": "1",
    }
    # Installed packages come with their bytecode: ours must be allowed to keep its own.
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    command = [sys.executable, __file__, workload, "--one", backend, *(["--small"] if small else [])]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    times: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return times


def measure(workload: str, *, small: bool) -> dict[str, Any]:
    times: dict[tuple[str, str], dict[str, float]] = {}
    for backend in BACKENDS:
        with tempfile.TemporaryDirectory() as folder:
            for state in ("cold", "warm"):
                times[backend, state] = measured(workload, backend, Path(folder), small=small)
    row: dict[str, Any] = {"workload": workload}
    for state in ("cold", "warm"):
        native, peer = times["native", state], times["torch.compile", state]
        row[state] = {
            kind: {
                "native": round(native[kind], 2),
                "torch.compile": round(peer[kind], 2),
                "ratio": round(native[kind] / peer[kind], 3),
            }
            for kind in native
        }
    return row


def show(row: dict[str, Any]) -> None:
    for state in ("cold", "warm"):
        for kind, numbers in row[state].items():
            told = "  ".join(f"{name} {value:6.2f}" for name, value in numbers.items() if name != "ratio")
            print(f"{row['workload']:15} {state}  {kind:26} {told}  ratio {numbers['ratio']:.3f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("workloads", nargs="*", default=WORKLOADS, metavar="workload", help=", ".join(WORKLOADS))
    parser.add_argument("--small", action="store_true", help="narrow layers, as many of them")
    parser.add_argument("--json", type=Path, help="write the numbers to this file")
    parser.add_argument("--one", choices=BACKENDS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(first_result(arguments.workloads[0], arguments.one, small=arguments.small)))
        return
    rows = []
    for workload in arguments.workloads:
        rows.append(measure(workload, small=arguments.small))
        show(rows[-1])
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
