"""Modes around a call that its program depends on, kept for running the program again later."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import torch

from precast.capture.module_state import root_modules
from precast.tracing.flat_function import FlatFunction

Ambient = Callable[[], AbstractContextManager[None]]
"""Enters modes that held once."""


def ambient_of(function: Callable[..., Any]) -> Ambient:
    """The autocast and the train/eval modes that hold now for ``function``, to be entered again later."""
    autocast = [
        (device, torch.get_autocast_dtype(device), torch.is_autocast_enabled(device)) for device in ("cpu", "cuda")
    ]
    modes = [(module, module.training) for root in root_modules(function).values() for module in root.modules()]

    @contextmanager
    def entered() -> Iterator[None]:
        with ExitStack() as stack:
            for device, dtype, is_enabled in autocast:
                if is_enabled or torch.is_autocast_enabled(device):
                    stack.enter_context(torch.autocast(device, dtype, enabled=is_enabled))
            stack.enter_context(_module_modes(modes))
            yield

    return entered


def in_ambient(ambient: Ambient, run: FlatFunction) -> FlatFunction:
    """``run`` under modes that held once, whenever it is called."""

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
