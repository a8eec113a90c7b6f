"""Batch norms whose running statistics are the averages of all batches so far (``momentum=None``).

Before: ``factor = 1.0 / float(num_batches_tracked)``, a Python number that only running the program can give.
After:  ``factor = 1.0 / num_batches_tracked``, a tensor; ``running = running * (1 - factor) + batch * factor``.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

import torch
from torch.nn.modules.batchnorm import _BatchNorm

_forward = _BatchNorm.forward


@contextmanager
def averages_by_tensors() -> Iterator[None]:
    """Let such batch norms count and blend with tensors meanwhile; the others stay as they are."""
    with patch.object(_BatchNorm, "forward", _traceable_forward):
        yield


def _traceable_forward(module: _BatchNorm, input: torch.Tensor) -> torch.Tensor:
    count, mean, variance = module.num_batches_tracked, module.running_mean, module.running_var
    if module.momentum is not None or not module.training or count is None or mean is None or variance is None:
        return _forward(module, input)
    module._check_input_dim(input)
    count.add_(1)
    # With a momentum of 1, nothing is left of what these were: they become the batch's own statistics.
    batch_mean, batch_variance = torch.zeros_like(mean), torch.zeros_like(variance)
    output = torch.nn.functional.batch_norm(
        input, batch_mean, batch_variance, module.weight, module.bias, training=True, momentum=1.0, eps=module.eps
    )
    factor = count.to(mean.dtype).reciprocal()
    mean.copy_(mean * (1 - factor) + batch_mean * factor)
    variance.copy_(variance * (1 - factor) + batch_variance * factor)
    return output
