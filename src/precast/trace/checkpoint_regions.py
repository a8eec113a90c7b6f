"""Regions of ``torch.utils.checkpoint`` as tags on nodes, which the partitioner honours.

Before: eager runs the region, drops its activations, and reruns it in the backward
After:  the region is traced once, each of its nodes tagged ``recompute``; the partitioner decides what is recomputed

Tracing eager's second run would draw new random numbers; recomputing tagged nodes replays them.
"""

import itertools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from typing import Any
from unittest.mock import patch

import torch
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
    """Tag a new node with its region and the region's policy for it."""
    region = _region.get()
    if region is not None:
        set_checkpoint_tag(node, *region)


def _region_generator(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Iterator[None]:
    """Replaces torch's generator, which is advanced once before and once after the function runs."""
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
    """Eager runs the region with grad mode off: its results require grad only if an argument does."""
    requires_grad = any(isinstance(each, torch.Tensor) and each.requires_grad for each in args)
    with _in_region(), torch.set_grad_enabled(torch.is_grad_enabled() and requires_grad):
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
    """Calls the user's policy for every op of a region, and tags the recorded nodes accordingly."""

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
