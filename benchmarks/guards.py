"""What it costs to check, at every call, what a variant assumes of Python's state.

Each model is compiled with the ``nop`` backend. The guards of its variant are checked alone; the best of many slices
counts, in microseconds. The goals: BERT-base under 30, a two-layer MLP under 3.

    python -m benchmarks.guards
"""

import time
from collections.abc import Callable

import torch
from transformers import BertConfig, BertModel, GPT2Config, GPT2Model

from precast.autograd.callable import AotCallable
from precast.autograd.compilers_in_use import CompilersInUse
from precast.compilers import nop

ROUNDS, CHECKS = 200, 50


def microseconds(call: Callable[[], object]) -> float:
    best = float("inf")
    for _ in range(ROUNDS):
        started = time.perf_counter()
        for _ in range(CHECKS):
            call()
        best = min(best, (time.perf_counter() - started) / CHECKS * 1e6)
    return best


def measure(title: str, model: torch.nn.Module, *inputs: torch.Tensor) -> None:
    compiled = AotCallable(model, CompilersInUse.of(nop, None, None))
    with torch.no_grad():
        compiled(*inputs)
    (record,) = compiled._variants.records()
    guards = record.variant.guards
    assert guards is not None, "a traced variant has guards"
    modules = sum(1 for _ in model.modules())
    print(
        f"{title:16} {modules:4} modules {len(guards):5} assumptions  {microseconds(guards.hold):6.2f} us", flush=True
    )


def main() -> None:
    torch.set_num_threads(1)
    mlp = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 8))
    measure("two-layer MLP", mlp, torch.randn(2, 8))
    ids = torch.randint(0, 100, (1, 8))
    measure("BERT-base", BertModel(BertConfig()).eval(), ids)
    measure("GPT-2", GPT2Model(GPT2Config(use_cache=False)).eval(), ids)


if __name__ == "__main__":
    main()
