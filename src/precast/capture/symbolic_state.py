"""Parameters and buffers of a module that is traced symbolically: read as proxies, and written to in the graph.

Before: ``self.count = self.count + 1`` adds to the module's own buffer while tracing
After:  ``count = get_attr(count); add = count + 1; copy_ = count.copy_(add)``

The assignment of ``torch.nn.Module`` is exchanged, and put back whatever happens.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import fx


class StateProxy(fx.Proxy):
    """A tensor of the module: its values are unknown, its sizes are not."""

    def __init__(self, node: fx.Node, tracer: fx.Tracer, tensor: torch.Tensor) -> None:
        super().__init__(node, tracer)
        self._tensor = tensor

    @property
    def shape(self) -> torch.Size:
        return self._tensor.shape

    @property
    def ndim(self) -> int:
        return self._tensor.ndim

    def size(self, dim: int | None = None) -> Any:
        return self.shape if dim is None else self.shape[dim]

    def dim(self) -> int:
        return self.ndim

    def numel(self) -> int:
        return self._tensor.numel()


@contextmanager
def recorded_assignments() -> Iterator[None]:
    """While active, a traced value that is assigned to a buffer is written into it in the graph."""
    original = torch.nn.Module.__setattr__

    def assign(module: torch.nn.Module, name: str, value: Any) -> None:
        if isinstance(value, fx.Proxy) and isinstance(module._buffers.get(name), torch.Tensor):
            getattr(module, name).copy_(value)
        else:
            original(module, name, value)

    torch.nn.Module.__setattr__ = assign  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        torch.nn.Module.__setattr__ = original  # type: ignore[method-assign]
