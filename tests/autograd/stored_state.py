"""Runs a module in eager and compiled, call by call, and compares results, gradients and all state that it leaves."""

import copy
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import nn

import precast
from precast import aot_module
from precast.compilers import nop

Calls = Sequence[tuple[Any, ...]]


def compile_strictly(module: nn.Module) -> nn.Module:
    """Compiled so that nothing may run in Python."""
    return aot_module(module, nop)


class Shown:
    """What can be seen from some values: containers and objects with who is who, and the tensors in them."""

    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}
        self._kept: list[Any] = []
        self.tensors: list[torch.Tensor] = []

    def of(self, value: Any) -> Any:
        if value is None or isinstance(value, (bool, int, float, str, torch.dtype, torch.Size)):
            return value
        if isinstance(value, tuple):
            return (type(value).__name__, *map(self.of, value))
        is_new = id(value) not in self._numbers
        number = self._numbers.setdefault(id(value), len(self._numbers))
        self._kept.append(value)
        if not is_new:
            return number
        if isinstance(value, torch.Tensor):
            self.tensors.append(value)
            return ("tensor", number, type(value).__name__, value.dtype, value.shape, value.requires_grad)
        return (type(value).__name__, number, *self._parts(value))

    @staticmethod
    def tensors_of(value: Any) -> list[torch.Tensor]:
        """All tensors that are to be seen in a value, each once."""
        shown = Shown()
        shown.of(value)
        return shown.tensors

    def _parts(self, value: Any) -> Iterator[Any]:
        if isinstance(value, dict):
            yield from ((self.of(key), self.of(each)) for key, each in value.items())
        elif isinstance(value, (list, set)) or type(value).__name__ == "deque":
            yield from map(self.of, value)
        elif hasattr(value, "__dict__") and not callable(value):
            yield from ((name, self.of(each)) for name, each in sorted(vars(value).items()))


def state_of(module: nn.Module) -> list[dict[str, Any]]:
    """All attributes of all modules, but for what torch keeps there; order of names as it came about."""
    hidden = {"_parameters", "_modules", "_non_persistent_buffers_set", "_compiled_call_impl"}
    return [
        {name: value for name, value in vars(each).items() if name not in hidden and "hook" not in name}
        for each in module.modules()
    ]


def assert_same_calls(
    make: Callable[[], nn.Module],
    calls: Calls,
    *,
    compile: Callable[[nn.Module], nn.Module] = compile_strictly,
    between: Callable[[nn.Module], None] | None = None,
    variants: int | None = None,
    trains: bool = True,
) -> nn.Module:
    """Both see the same calls; ``variants`` is how many compilations there may be at most."""
    torch.manual_seed(0)
    eager = make()
    original = copy.deepcopy(eager)
    compiled = compile(original)
    for arguments in calls:
        seen = []
        for module, owner in ((eager, eager), (compiled, original)):
            torch.manual_seed(1)
            own = copy.deepcopy(arguments)
            result = module(*own)
            shown = Shown()
            form = shown.of((result, state_of(owner), own))
            seen.append((form, shown.tensors))
            if trains:
                losses = [each.double().sum() for each in shown.tensors if each.requires_grad and each.grad_fn]
                if losses:
                    sum(losses).backward(retain_graph=True)
            if between is not None:
                between(module)
        (expected, expected_tensors), (found, found_tensors) = seen
        assert found == expected
        for left, right in zip(found_tensors, expected_tensors, strict=True):
            torch.testing.assert_close(left, right)
        for (name, left), right in zip(original.named_parameters(), eager.parameters(), strict=True):
            torch.testing.assert_close(left.grad, right.grad, msg=lambda text, name=name: f"gradient of {name}: {text}")
    if variants is not None:
        reasons = [each.reason for each in precast.variants(compiled)]
        assert len(reasons) <= variants, reasons
    return compiled
