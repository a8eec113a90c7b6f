"""The whole story on a small transformer: compile it, train it, package it, and run the file without torch."""

import copy
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from torch import nn

import precast

console = Console(soft_wrap=True, highlight=False)
SLICES, SLICE_SECONDS = 6, 0.25


class Block(nn.Module):
    """Attention and a perceptron, each added to what came in."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.first_norm, self.second_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query_key_value, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.perceptron = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in self.query_key_value(self.first_norm(x)).chunk(3, -1)
        )
        attended = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.project(attended.transpose(1, 2).flatten(2))
        return x + self.perceptron(self.second_norm(x))


class SmallTransformer(nn.Module):
    """Predicts the next of 100 tokens."""

    def __init__(self, width: int = 192, heads: int = 4, depth: int = 4) -> None:
        super().__init__()
        self.embed = nn.Embedding(100, width)
        self.blocks = nn.Sequential(*[Block(width, heads) for _ in range(depth)])
        self.head = nn.Linear(width, 100)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(self.embed(tokens)))


def compile_and_compare(model: nn.Module, tokens: torch.Tensor) -> None:
    console.rule("1. Compile: native code for this machine")
    networks = {
        "eager": model,
        "compiled": precast.compile(model),
        "compiled, frozen": precast.compile(model, options={"freeze": True}),
    }
    with torch.no_grad():
        truth = copy.deepcopy(model).double()(tokens)
        first = {name: timed(lambda network=network: network(tokens)) for name, network in networks.items()}
        errors = {name: (network(tokens) - truth).abs().max() for name, network in networks.items()}
        times = take_turns({name: lambda network=network: network(tokens) for name, network in networks.items()})
    table = Table("", "first call", "a call", "times as fast", "largest error to float64")
    for name, seconds in times.items():
        ratio = times["eager"] / seconds
        table.add_row(name, f"{first[name]:.2f} s", f"{seconds * 1000:.2f} ms", f"{ratio:.2f}", f"{errors[name]:.1e}")
    console.print(table)
    console.print(
        "The first call compiles; the next process finds the code in the cache. Frozen takes the weights as constants."
    )


def train_both(model: nn.Module, tokens: torch.Tensor, steps: int = 4) -> None:
    console.rule("2. Train: the backward is compiled, too")
    eager, compiled = copy.deepcopy(model), precast.compile(copy.deepcopy(model))
    table = Table("step", "loss, eager", "loss, compiled", "largest difference of a parameter")
    optimizers = [torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9) for network in (eager, compiled)]
    for step in range(steps):
        losses = []
        for network, optimizer in zip((eager, compiled), optimizers, strict=True):
            logits = network(tokens[:, :-1])
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        pairs = zip(eager.parameters(), compiled.parameters(), strict=True)
        difference = max((one - other).abs().max().item() for one, other in pairs)
        table.add_row(str(step), f"{losses[0]:.6f}", f"{losses[1]:.6f}", f"{difference:.1e}")
    console.print(table)


def package(model: nn.Module, tokens: torch.Tensor, folder: Path) -> Path:
    console.rule("3. Package: one file, for any batch and length")
    shapes = {"tokens": {0: precast.Dim("batch", min=1), 1: precast.Dim("sequence", min=1)}}
    started = time.perf_counter()
    path = precast.package(model, (tokens,), path=folder / "transformer.precast", dynamic_shapes=shapes)
    weights = sum(parameter.nbytes for parameter in model.parameters())
    size = path.stat().st_size
    console.print(
        f"{path.name}: {size / 2**20:.1f} MiB, of which {weights / 2**20:.1f} MiB are weights; "
        f"written in {time.perf_counter() - started:.1f} s"
    )
    return path


WITHOUT_TORCH = """
import sys, time
started = time.perf_counter()
sys.modules["torch"] = None  # an import of torch would fail
import json, numpy, precast.runtime
imported = time.perf_counter()
model = precast.runtime.load(sys.argv[1])
loaded = time.perf_counter()
logits = model(numpy.arange(46).reshape(2, 23))
ran = time.perf_counter()
print(json.dumps([imported - started, loaded - imported, ran - loaded, float(numpy.abs(logits).sum())]))
"""
WITH_TORCH = """
import sys, torch
sys.path.insert(0, sys.argv[1])
from demo import SmallTransformer
with torch.no_grad():
    SmallTransformer().eval()(torch.arange(46).reshape(2, 23))
"""


def run_without_torch(model: nn.Module, path: Path) -> None:
    console.rule("4. Run: in a process without torch, at a size it was never called with")
    seconds, said = in_child(WITHOUT_TORCH, path)
    imported, loaded, ran, total = json.loads(said)
    torch_seconds, _ = in_child(WITH_TORCH, Path(__file__).parent)
    with torch.no_grad():
        expected = model(torch.arange(46).reshape(2, 23)).abs().sum().item()
    console.print(
        f"process start to its end with the result: {seconds * 1000:.0f} ms "
        f"(imports {imported * 1000:.0f}, load {loaded * 1000:.0f}, first call {ran * 1000:.1f}); "
        f"with torch, eagerly: {torch_seconds * 1000:.0f} ms"
    )
    console.print(f"sum of its numbers {total:.4f}, eager's {expected:.4f}")


def in_child(code: str, argument: Path) -> tuple[float, str]:
    """Run Python in a process of its own; the best time of three and what that one printed."""
    runs = []
    for _ in range(3):
        started = time.perf_counter()
        done = subprocess.run([sys.executable, "-c", code, argument], capture_output=True, text=True, check=True)
        runs.append((time.perf_counter() - started, done.stdout))
    return min(runs)


def timed(call: Callable[[], object]) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def take_turns(calls: dict[str, Callable[[], object]]) -> dict[str, float]:
    """The median call of each one's best slice; they take turns, so that other work on the machine counts for all."""
    best = dict.fromkeys(calls, float("inf"))
    for _ in range(SLICES):
        for name, call in calls.items():
            times: list[float] = []
            while sum(times) < SLICE_SECONDS:
                times.append(timed(call))
            best[name] = min(best[name], statistics.median(times))
    return best


def main() -> None:
    torch.manual_seed(0)
    model = SmallTransformer().eval()
    tokens = torch.randint(0, 100, (4, 64))
    compile_and_compare(model, tokens)
    train_both(model, tokens)
    with tempfile.TemporaryDirectory() as folder:
        run_without_torch(model, package(model, tokens, Path(folder)))


if __name__ == "__main__":
    main()
