"""Regions of ``torch.utils.checkpoint`` as tags on nodes, for the partitioner to honour.

Before: eager runs the region, drops its activations, and runs it again in the backward
After:  the region is traced once, each of its nodes tagged ``recompute``; what is run again is the partitioner's choice

Tracing eager's second run would draw random numbers anew; recomputing tagged nodes replays them.
"""

import itertools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from typing import Any
from unittest.mock import patch

import torch.utils.checkpoint as torch_checkpoint
from torch import fx
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import CheckpointPolicy, SelectiveCheckpointContext

from precast._torch_compat import CHECKPOINT_GENERATOR, checkpoint_context
from precast.graph.nodes import set_checkpoint_tag

_Region = tuple[int, CheckpointPolicy]
_region: ContextVar[_Region | None] = ContextVar("checkpoint_region", default=None)
_numbers = itertools.count()


@contextmanager
def tagged_checkpoints() -> Iterator[None]:
    """While active, checkpointed functions run once, inside a region."""
    with (
        patch.object(torch_checkpoint, CHECKPOINT_GENERATOR, _region_generator),
        patch.object(torch_checkpoint.CheckpointFunction, "apply", staticmethod(_run_reentrant)),
    ):
        yield


def tag_checkpointed(node: fx.Node) -> None:
    """Write on a new node which region it belongs to, and what that region wants done with it."""
    region = _region.get()
    if region is not None:
        set_checkpoint_tag(node, *region)


def _region_generator(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Iterator[None]:
    """Stands in for torch's generator: it is advanced once before and once after the function runs."""
    context_fn = checkpoint_context(args, kwargs)
    forward_context = context_fn()[0] if context_fn is not None else None
    policy = getattr(forward_context, "policy_fn", None)
    with ExitStack() as stack:
        number = stack.enter_context(_in_region())
        if policy is not None:
            stack.enter_context(_SelectivePolicy(policy, number))
        elif forward_context is not None:
            stack.enter_context(forward_context)
        yield


def _run_reentrant(function: Callable[..., Any], preserve_rng_state: bool, *args: Any) -> Any:
    with _in_region():
        return function(*args)


@contextmanager
def _in_region(policy: CheckpointPolicy = CheckpointPolicy.PREFER_RECOMPUTE) -> Iterator[int]:
    number = next(_numbers)
    token = _region.set((number, policy))
    try:
        yield number
    finally:
        _region.reset(token)


class _SelectivePolicy(TorchDispatchMode):
    """Asks the user's policy about every op of a region, and tags what the op records accordingly."""

    def __init__(self, policy: Callable[..., CheckpointPolicy | bool], number: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._policy = policy
        self._number = number

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        choice = self._policy(SelectiveCheckpointContext(is_recompute=False), func, *args, **kwargs)
        if isinstance(choice, bool):
            choice = CheckpointPolicy.MUST_SAVE if choice else CheckpointPolicy.PREFER_RECOMPUTE
        token = _region.set((self._number, choice))
        try:
            return func(*args, **kwargs)
        finally:
            _region.reset(token)
