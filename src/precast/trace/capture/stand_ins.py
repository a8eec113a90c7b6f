"""Replaces library code that cannot be traced exactly: optimizers' step counts, and averaging batch norms.

Torch's optimizers compute with steps as Python numbers, as in eager.

Before: ``1 - 0.999**step`` with ``step`` a float32 tensor, their code for compilers: off by 1e-5 in the first steps
After:  ``step.item()``, a symbol for a Python number, and arithmetic in double precision

Optimizers that branch on such a number take their path for CUDA graphs (``capturable``), which selects by tensors.

Batch norms whose running statistics are averages of all batches so far (``momentum=None``):

Before: ``factor = 1.0 / float(num_batches_tracked)``, a data-dependent Python number.
After:  ``factor = 1.0 / num_batches_tracked``, a tensor; ``running = running * (1 - factor) + batch * factor``.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from functools import wraps
from typing import Any
from unittest.mock import patch

import torch
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim import asgd, radam, rprop

from precast.trace.eager.symbolic_numbers import greatest, least

_CHOOSING = ((asgd, "asgd"), (radam, "radam"), (rprop, "rprop"))


@contextmanager
def steps_as_numbers() -> Iterator[None]:
    """While active, optimizers compute with steps as in eager."""
    modules = [module for name, module in list(sys.modules.items()) if name.startswith("torch.optim.")]
    with ExitStack() as stack:
        for module in modules:
            for name, replacement in _REPLACED.items():
                if hasattr(module, name):
                    stack.enter_context(patch.object(module, name, replacement))
            for name, replacement in _EXTREMES.items():
                stack.enter_context(patch.object(module, name, replacement, create=True))
        # Their profiler marks would split the graph.
        stack.enter_context(patch.object(torch.autograd.profiler, "record_function", _unmarked(_record_function)))
        for module, name in _CHOOSING:
            stack.enter_context(patch.object(module, name, _by_tensors(getattr(module, name))))
        yield


_record_function = torch.autograd.profiler.record_function


def _unmarked(record: Callable[..., Any]) -> Callable[..., Any]:
    def mark(name: str, *args: Any) -> Any:
        return nullcontext() if name.startswith("Optimizer.") else record(name, *args)

    return mark


def _number(value: Any) -> Any:
    return value.item() if isinstance(value, torch.Tensor) else value


def _list(values: Any) -> Any:
    return values


_REPLACED = {"_get_value": _number, "_stack_if_compiling": _list}
_EXTREMES = {"max": greatest, "min": least}


def _by_tensors(update: Callable[..., None]) -> Callable[..., None]:
    """An optimizer's function in its ``capturable`` mode, with steps in double precision."""

    @wraps(update)
    def run(*args: Any, **kwargs: Any) -> None:
        steps: Sequence[torch.Tensor] = next(each for each in reversed(args) if isinstance(each, (list, tuple)))
        exact = [step.double() for step in steps]
        others = [exact if each is steps else each for each in args]
        update(*others, **{**kwargs, "capturable": True})
        for step, counted in zip(steps, exact, strict=True):
            step.copy_(counted)

    return run


_forward = _BatchNorm.forward


@contextmanager
def averages_by_tensors() -> Iterator[None]:
    """While active, batch norms with ``momentum=None`` count and average with tensors."""
    with patch.object(_BatchNorm, "forward", _traceable_forward):
        yield


def _traceable_forward(module: _BatchNorm, input: torch.Tensor) -> torch.Tensor:
    count, mean, variance = module.num_batches_tracked, module.running_mean, module.running_var
    if module.momentum is not None or not module.training or count is None or mean is None or variance is None:
        return _forward(module, input)
    module._check_input_dim(input)
    count.add_(1)
    # With a momentum of 1, these become the statistics of the batch.
    batch_mean, batch_variance = torch.zeros_like(mean), torch.zeros_like(variance)
    output = torch.nn.functional.batch_norm(
        input, batch_mean, batch_variance, module.weight, module.bias, training=True, momentum=1.0, eps=module.eps
    )
    factor = count.to(mean.dtype).reciprocal()
    mean.copy_(mean * (1 - factor) + batch_mean * factor)
    variance.copy_(variance * (1 - factor) + batch_variance * factor)
    return output
