"""Keeps recurrent layers whole while they are captured.

Before: ``gru(x[batch, time, 6])`` is unrolled, one step after the other, and fixes ``time``
After:  ``gru(x[batch, time, 6])`` is one node; ONNX has an operator for it

Torch finds the sizes of what ``gru`` gives by running what it is made of. Here they are computed.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch._C import DispatchKey
from torch._decomp import meta_table
from torch._dispatch.python import enable_python_dispatcher

from precast.export.preserved_ops import preserved

_GRU = torch.ops.aten.gru.input


def _gru_sizes(
    x: torch.Tensor,
    start: torch.Tensor,
    weights: Sequence[torch.Tensor],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    width = start.shape[-1] * (2 if bidirectional else 1)
    return x.new_empty((*x.shape[:2], width)), torch.empty_like(start)


@contextmanager
def whole_recurrent_layers(module: torch.nn.Module) -> Iterator[None]:
    """While active, tracing records ``gru`` without looking inside; nothing changes for a module that has none."""
    if not any(isinstance(child, torch.nn.GRU) for child in module.modules()):
        yield
        return
    with preserved([_GRU]), enable_python_dispatcher():
        _GRU.py_kernels[DispatchKey.Meta] = _gru_sizes
        _GRU._dispatch_cache.clear()
        meta_table[_GRU] = _gru_sizes
        try:
            yield
        finally:
            del meta_table[_GRU]
