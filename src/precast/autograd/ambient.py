"""Modes around a call that its program depends on, kept for running the program again later."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import torch

from precast.capture.module_state import root_modules
from precast.tracing.flat_function import FlatFunction


def ambient_of(function: Callable[..., Any]) -> Callable[[], AbstractContextManager[None]]:
    """The autocast and the train/eval modes that hold now for ``function``, to be entered again later."""
    autocast = [
        (device, torch.get_autocast_dtype(device)) for device in ("cpu", "cuda") if torch.is_autocast_enabled(device)
    ]
    modes = [(module, module.training) for root in root_modules(function).values() for module in root.modules()]

    @contextmanager
    def entered() -> Iterator[None]:
        with ExitStack() as stack:
            for device, dtype in autocast:
                stack.enter_context(torch.autocast(device, dtype))
            stack.enter_context(_module_modes(modes))
            yield

    return entered


def in_ambient(function: Callable[..., Any], run: FlatFunction) -> FlatFunction:
    """``run`` under the autocast and the train/eval modes that hold now for ``function``, whenever it is called."""
    ambient = ambient_of(function)

    def run_again(*inputs: Any) -> Any:
        with ambient():
            return run(*inputs)

    return run_again


@contextmanager
def _module_modes(modes: list[tuple[torch.nn.Module, bool]]) -> Iterator[None]:
    before = [module.training for module, _ in modes]
    for module, training in modes:
        module.training = training
    try:
        yield
    finally:
        for (module, _), training in zip(modes, before, strict=True):
            module.training = training
