"""What compiled functions cost in Python, and how long compiling a model for training takes.

    python -m benchmarks.autograd [overhead | bert]

Overhead: a function of two small inputs, compiled with ``nop``, beside a hand-written ``autograd.Function`` that does
the same. Rounds of both alternate, and each figure is the best round in processor time, so that other work on the
machine counts little.
BERT: the time from the first call to the end of it, for tracing, partitioning and wrapping BERT-base.
"""

import sys
import time
from collections.abc import Callable
from typing import Any

import torch

from precast.autograd import aot_function, aot_module
from precast.compilers import nop

ROUNDS, CALLS = 30, 500


def program(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x * y


class ByHand(torch.autograd.Function):
    """The same by hand, for the same two inputs."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, y)
        return torch.ops.aten.mul.Tensor(x, y)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x, y = ctx.saved_tensors
        return torch.ops.aten.mul.Tensor(gradient, y), torch.ops.aten.mul.Tensor(gradient, x)


def microseconds(call: Callable[[], object]) -> float:
    start = time.process_time()
    for _ in range(CALLS):
        call()
    return (time.process_time() - start) / CALLS * 1e6


def compare(what: str, ours: Callable[[], object], by_hand: Callable[[], object]) -> None:
    times = [(microseconds(ours), microseconds(by_hand)) for _ in range(ROUNDS)]
    best, reference = (min(column) for column in zip(*times, strict=True))
    print(f"{what:20} {best:7.1f} µs compiled, {reference:7.1f} µs by hand: {best / reference:.2f} times")


def overhead() -> None:
    torch.set_num_threads(1)
    x, y = (torch.randn(4, requires_grad=True) for _ in range(2))
    tangent = torch.ones(4)
    compiled = aot_function(program, nop)
    compare("forward", lambda: compiled(x, y), lambda: ByHand.apply(x, y))
    compare(
        "forward and backward",
        lambda: torch.autograd.backward(compiled(x, y), tangent),
        lambda: torch.autograd.backward(ByHand.apply(x, y), tangent),
    )


def bert() -> None:
    import transformers

    torch.manual_seed(0)
    model = transformers.BertModel(transformers.BertConfig()).train()
    tokens = torch.randint(0, 30000, (1, 16))
    for clock in (time.process_time, time.perf_counter):
        start = clock()
        model(input_ids=tokens)
        eager = clock() - start
        start = clock()
        aot_module(model, nop)(input_ids=tokens)
        seconds = clock() - start - eager
        print(f"BERT-base for training: {seconds:.2f} s by {clock.__name__}, without the forward's own {eager:.2f} s")


if __name__ == "__main__":
    chosen = sys.argv[1:] or ["overhead", "bert"]
    for name in chosen:
        {"overhead": overhead, "bert": bert}[name]()
