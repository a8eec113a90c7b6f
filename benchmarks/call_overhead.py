"""What a call costs beside its kernels: ten small inputs, through eager, torch.compile and Precast.

The program is one tiny loop over ten tensors, so that nearly all of the time is the way there and back: finding the
compiled variant, describing tensors to native code, allocating results. Contenders take turns in one process with one
thread; the best of many slices counts, in microseconds.

    python -m benchmarks.call_overhead
"""

import time
from collections.abc import Callable

import torch

import precast

INPUTS, ROUNDS, CALLS = 10, 400, 30


def total(*tensors: torch.Tensor) -> torch.Tensor:
    result = tensors[0]
    for tensor in tensors[1:]:
        result = result + tensor
    return result


class Total(torch.nn.Module):
    """The same over nine parameters and one input."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = torch.nn.ParameterList(torch.randn(8) for _ in range(INPUTS - 1))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return total(inputs, *self.weights)


def microseconds(call: Callable[[], object]) -> float:
    started = time.perf_counter()
    for _ in range(CALLS):
        call()
    return (time.perf_counter() - started) / CALLS * 1e6


def compare(title: str, calls: dict[str, Callable[[], object]]) -> None:
    """The best slice of each, taken in turns."""
    best = dict.fromkeys(calls, float("inf"))
    for call in calls.values():
        microseconds(call)
    for _ in range(ROUNDS):
        for name, call in calls.items():
            best[name] = min(best[name], microseconds(call))
    print(f"{title:44}" + "  ".join(f"{name} {value:6.1f}" for name, value in best.items()), flush=True)


def without_gradients(call: Callable[..., torch.Tensor], *inputs: torch.Tensor) -> Callable[[], object]:
    def run() -> object:
        with torch.no_grad():
            return call(*inputs)

    return run


def main() -> None:
    torch.set_num_threads(1)
    plain = [torch.randn(8) for _ in range(INPUTS)]
    trained = [torch.randn(8, requires_grad=True) for _ in range(INPUTS)]
    module = Total()

    def contenders(function: Callable[..., torch.Tensor]) -> dict[str, Callable[..., torch.Tensor]]:
        ours, theirs = precast.compile(function, dynamic=False), torch.compile(function, dynamic=False)
        return {"eager": function, "torch.compile": theirs, "precast": ours}

    print(f"microseconds a call, {INPUTS} inputs")
    for title, function, inputs in (("function", total, plain), ("module with parameters", module, plain[:1])):
        calls = {name: without_gradients(each, *inputs) for name, each in contenders(function).items()}
        compare(f"{title}, no_grad", calls)
    for title, function, inputs in (("function", total, trained), ("module with parameters", module, plain[:1])):
        found = contenders(function)
        compare(f"{title}, training forward", {name: lambda f=each, i=inputs: f(*i) for name, each in found.items()})  # type: ignore[misc]


if __name__ == "__main__":
    main()
