"""A training step by ``precast.train_step`` beside eager, ``precast.compile`` with fused AdamW, and torch.compile.

``python -m benchmarks.train_step [--models gpt] [--seconds 1]``. All take turns, so that other work on the machine
counts for all of them; a step's time is the median of the best turn. Batches are small, and one thread is used.
"""

import argparse
import copy
import statistics
import time
from collections.abc import Callable

import torch
from torch import nn

import precast

TURNS = 4


def gpt() -> tuple[nn.Module, torch.Tensor, Callable[..., torch.Tensor]]:
    layer = nn.TransformerEncoderLayer(128, 4, 512, dropout=0.0, activation="gelu", batch_first=True, norm_first=True)
    model = nn.Sequential(nn.Embedding(100, 128), nn.TransformerEncoder(layer, 2, enable_nested_tensor=False))
    model.append(nn.Linear(128, 100))
    tokens = torch.randint(0, 100, (4, 64))
    return model, tokens, lambda m, x: nn.functional.cross_entropy(m(x)[:, :-1].flatten(0, 1), x[:, 1:].flatten())


def perceptron() -> tuple[nn.Module, torch.Tensor, Callable[..., torch.Tensor]]:
    model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 256), nn.GELU(), nn.Linear(256, 64))
    return model, torch.randn(64, 64), lambda m, x: nn.functional.mse_loss(m(x), x)


def convolutions() -> tuple[nn.Module, torch.Tensor, Callable[..., torch.Tensor]]:
    layers: list[nn.Module] = []
    for width, out in ((3, 16), (16, 32), (32, 64)):
        layers += [nn.Conv2d(width, out, 3, 2, 1), nn.BatchNorm2d(out), nn.ReLU()]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))
    return model, torch.randn(8, 3, 32, 32), lambda m, x: m(x).logsumexp(1).mean()


MODELS = {"perceptron": perceptron, "gpt": gpt, "convolutions": convolutions}


def eager_step(model: nn.Module, loss_fn: Callable[..., torch.Tensor], call: nn.Module) -> Callable[..., torch.Tensor]:
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)

    def step(batch: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = loss_fn(call, batch)
        loss.backward()
        optimizer.step()
        return loss

    return step


def torch_compiled(model: nn.Module, loss_fn: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    optimizer, call = torch.optim.AdamW(model.parameters()), torch.compile(model)
    update = torch.compile(lambda: optimizer.step())

    def step(batch: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = loss_fn(call, batch)
        loss.backward()
        update()
        return loss

    return step


def contenders(name: str) -> tuple[dict[str, Callable[..., torch.Tensor]], torch.Tensor]:
    torch.manual_seed(0)
    model, batch, loss_fn = MODELS[name]()
    own = [copy.deepcopy(model) for _ in range(4)]
    steps = {
        "eager, fused": eager_step(own[0], loss_fn, own[0]),
        "precast.compile, fused": eager_step(own[1], loss_fn, precast.compile(own[1])),
        "torch.compile, both": torch_compiled(own[2], loss_fn),
        "train_step": precast.train_step(own[3], loss_fn, torch.optim.AdamW(own[3].parameters()), batch),
    }
    return steps, batch


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="*", default=list(MODELS))
    parser.add_argument("--seconds", type=float, default=1.0, help="of a turn")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    for name in chosen.models:
        steps, batch = contenders(name)
        first = {each: _timed(step, batch) for each, step in steps.items()}
        best = dict.fromkeys(steps, float("inf"))
        for _ in range(TURNS):
            for each, step in steps.items():
                times: list[float] = []
                while sum(times) < chosen.seconds or len(times) < 3:
                    times.append(_timed(step, batch))
                best[each] = min(best[each], statistics.median(times))
        print(f"\n{name}: ms a step, times as fast as eager, s of the first step")
        for each, seconds in best.items():
            ratio = best["eager, fused"] / seconds
            print(f"  {each:24} {seconds * 1e3:8.2f} {ratio:6.2f} {first[each]:8.2f}")


def _timed(step: Callable[..., torch.Tensor], batch: torch.Tensor) -> float:
    started = time.perf_counter()
    step(batch)
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
