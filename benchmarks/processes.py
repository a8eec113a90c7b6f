"""Training over several processes of one thread each: a step of ours beside DistributedDataParallel, and as planned.

Usage::

    python -m benchmarks.processes                                # 1, 2 and 4 processes, as far as there are cores
    python -m benchmarks.processes --processes 2 --contenders ddp precast --steps 10 --small

For each contender, milliseconds of a step (the median) and seconds until the first one is done, with nothing cached.
``precast plan``'s row is told from the timeline of one process and a measured bandwidth.
"""

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

import precast
from benchmarks.peers.tables import markdown
from precast.training.plan import Network, plan
from precast.training.timeline import read_timeline

TITLES = {"ddp": "DistributedDataParallel", "compile": "the same, torch.compile", "precast": "Precast, train_step"}
PLANNED = "precast plan"
Step = Callable[[Any], torch.Tensor]


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure what the command line asks for."""
    chosen = _parser().parse_args(arguments)
    found = {(name, count): _measured(name, count, chosen) for name in chosen.contenders for count in chosen.processes}
    rows = [
        [TITLES[name], *(f"{1e3 * found[name, count]['step']:.2f}" for count in chosen.processes),
         *(f"{found[name, count]['first']:.1f} s" for count in chosen.processes)]
        for name in chosen.contenders
    ]  # fmt: skip
    if "precast" in chosen.contenders:
        rows.append(_planned_row(found, chosen.processes))
    titles = [f"{count} processes" for count in chosen.processes]
    print(markdown(["milliseconds of a step", *titles, *(f"first step, {title}" for title in titles)], rows))


def _planned_row(found: dict[tuple[str, int], Any], counts: Sequence[int]) -> list[str]:
    alone = found["precast", counts[0]]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "step.json"
        path.write_text(alone["timeline"])
        timeline = read_timeline(path)
    bandwidths = [found["precast", count]["bandwidth"] for count in counts if count > 1]
    network = Network(min(bandwidths, default=1e9))
    steps = plan(timeline, network, counts)
    return [f"{PLANNED}, {network.bandwidth / 1e9:.1f} GB/s", *(f"{1e3 * each.seconds:.2f}" for each in steps)] + [
        "" for _ in counts
    ]


def _measured(name: str, count: int, chosen: argparse.Namespace) -> Any:
    """What the first process measured."""
    with tempfile.TemporaryDirectory(prefix="precast-processes-") as folder:
        os.environ |= {"PRECAST_CACHE_DIR": f"{folder}/cache", "TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor"}
        arguments = (folder, name, count, chosen.steps, chosen.small, time.time())
        torch.multiprocessing.start_processes(work, arguments, nprocs=count, start_method="spawn")
        return json.loads((Path(folder) / "found.json").read_text())


def work(rank: int, folder: str, name: str, count: int, steps: int, is_small: bool, began: float) -> None:
    """One of the processes."""
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=count)
    batch = torch.randint(0, 256, (4, 33 if is_small else 129), generator=torch.Generator().manual_seed(rank))
    step, ours = _step(name, _model(is_small), batch)
    step(batch)
    distributed.barrier()
    found: dict[str, Any] = {"first": time.time() - began}
    times = []
    for _ in range(steps):
        started = time.perf_counter()
        step(batch)
        times.append(time.perf_counter() - started)
    found["step"] = statistics.median(times)
    found["bandwidth"] = _bandwidth(count)
    if ours is not None:
        ours.timeline(batch).save(f"{folder}/timeline.json")
        found["timeline"] = Path(folder, "timeline.json").read_text()
    if rank == 0:
        Path(folder, "found.json").write_text(json.dumps(found))
    distributed.destroy_process_group()


def _bandwidth(count: int) -> float:
    """Bytes a second out of each process, in a ring."""
    tensor, times = torch.ones(4 * 2**20), []
    for _ in range(5):
        started = time.perf_counter()
        distributed.all_reduce(tensor)
        times.append(time.perf_counter() - started)
    return 2 * (count - 1) / count * tensor.nbytes / min(times)


def _model(is_small: bool) -> torch.nn.Module:
    import transformers

    width, layers = (64, 2) if is_small else (256, 4)
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=256, n_positions=128, n_embd=width, n_layer=layers, n_head=4, use_cache=False,
        bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    return transformers.GPT2LMHeadModel(config)


def _loss(model: torch.nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    logits = model(input_ids=tokens[:, :-1]).logits
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


def _step(name: str, model: torch.nn.Module, batch: torch.Tensor) -> tuple[Step, Any]:
    if name == "precast":
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
        made = precast.train_step(model, _loss, optimizer, batch, process_group=distributed.group.WORLD)
        return made, made
    wrapped = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(wrapped.parameters(), lr=1e-4, fused=True)
    called = torch.compile(wrapped) if name == "compile" else wrapped

    def step(tokens: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = _loss(called, tokens)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step, None


def _counts() -> list[int]:
    return [count for count in (1, 2, 4) if count <= max(2, len(os.sched_getaffinity(0)))]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.processes", description="Training over processes.")
    parser.add_argument("--processes", nargs="+", type=int, default=_counts(), help="how many, the smallest first")
    parser.add_argument("--contenders", nargs="+", choices=TITLES, default=list(TITLES), metavar="CONTENDER")
    parser.add_argument("--steps", type=int, default=30, help="steps that are timed; 30 if not given")
    parser.add_argument("--small", action="store_true", help="a model of two narrow layers")
    return parser


if __name__ == "__main__":
    main()
