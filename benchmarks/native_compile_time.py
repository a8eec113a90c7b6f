"""Time to the first result, cold and warm, of the native backend and of torch.compile; and how it grows with depth.

Each measurement is a process of its own with a cache folder of its own: ``cold`` starts with an empty one, ``warm``
with what the cold one left. Writes a table, and JSON with ``--json``.

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


def first_result(workload: str, backend: str, *, small: bool) -> float:
    """Seconds from the compiled model's first call to its result, gradients included when training."""
    model, kwargs, is_trained = make(workload, small=small)
    if backend == "native":
        import precast

        compiled = precast.compile(model, backend="native", dynamic=False)
    else:
        compiled = torch.compile(model, dynamic=False)
    started = time.perf_counter()
    if is_trained:
        compiled(**kwargs).last_hidden_state.sum().backward()
    else:
        with torch.no_grad():
            compiled(**kwargs)
    return time.perf_counter() - started


def measured(workload: str, backend: str, folder: Path, *, small: bool) -> float:
    environment = {
        **os.environ,
        "PRECAST_CACHE_DIR": str(folder / "precast"),
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
        "TORCHINDUCTOR_FX_GRAPH_CACHE": "1",
    }
    command = [sys.executable, __file__, workload, "--one", backend, *(["--small"] if small else [])]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return float(done.stdout.splitlines()[-1])


def measure(workload: str, *, small: bool) -> dict[str, Any]:
    row: dict[str, Any] = {"workload": workload}
    for backend in BACKENDS:
        with tempfile.TemporaryDirectory() as folder:
            for state in ("cold", "warm"):
                row[f"{backend} {state}"] = round(measured(workload, backend, Path(folder), small=small), 2)
    for state in ("cold", "warm"):
        row[f"ratio {state}"] = round(row[f"native {state}"] / row[f"torch.compile {state}"], 3)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("workloads", nargs="*", default=WORKLOADS, metavar="workload", help=", ".join(WORKLOADS))
    parser.add_argument("--small", action="store_true", help="narrow layers, as many of them")
    parser.add_argument("--json", type=Path, help="write the numbers to this file")
    parser.add_argument("--one", choices=BACKENDS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        print(first_result(arguments.workloads[0], arguments.one, small=arguments.small))
        return
    rows = []
    for workload in arguments.workloads:
        rows.append(measure(workload, small=arguments.small))
        print(" ".join(f"{key}: {value}" for key, value in rows[-1].items()), flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
