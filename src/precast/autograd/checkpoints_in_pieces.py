"""Regions of ``torch.utils.checkpoint`` in programs that run in pieces: torch's second run calls the same pieces.

Before: the forward calls compiled pieces; in the backward, torch reruns the region, with the modules as they are then
After:  the rerun is inside the contexts that route calls of modules to their pieces, as the first run was

Otherwise the rerun would save other tensors than the compiled pieces did, and draw other random numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from contextvars import ContextVar
from functools import cache
from typing import Any

import torch.utils.checkpoint as torch_checkpoint

from precast._torch_compat import CHECKPOINT_GENERATOR
from precast.trace.session import in_tracing_session, while_nobody_traces

Routing = Callable[[], AbstractContextManager[None]]
"""Returns a context in which calls of some modules are routed to pieces."""
_routings: ContextVar[tuple[Routing, ...]] = ContextVar("routings", default=())


@contextmanager
def routed_again_in_reruns(routing: Routing) -> Iterator[None]:
    """While active, regions that torch runs again later are run inside ``routing()``."""
    if not in_tracing_session():
        _wrap_torchs_regions()
    token = _routings.set((*_routings.get(), routing))
    try:
        yield
    finally:
        _routings.reset(token)


@cache
def _wrap_torchs_regions() -> None:
    """Let torch's checkpoints see to the routes of their functions; without any, they are as before."""
    # Tracing replaces the same attributes, and must not be what is wrapped.
    with while_nobody_traces():
        generator = getattr(torch_checkpoint, CHECKPOINT_GENERATOR)
        apply: Callable[..., Any] = torch_checkpoint.CheckpointFunction.apply

        def routed_generator(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            return generator(_with_routes(function), *args, **kwargs)

        def routed_apply(function: Callable[..., Any], *args: Any) -> Any:
            return apply(_with_routes(function), *args)

        setattr(torch_checkpoint, CHECKPOINT_GENERATOR, routed_generator)
        torch_checkpoint.CheckpointFunction.apply = staticmethod(routed_apply)  # type: ignore[method-assign]


def _with_routes(function: Callable[..., Any]) -> Callable[..., Any]:
    routings = _routings.get()
    if not routings:
        return function

    def run(*args: Any, **kwargs: Any) -> Any:
        with ExitStack() as stack:
            for routing in routings:
                stack.enter_context(routing())
            return function(*args, **kwargs)

    return run
