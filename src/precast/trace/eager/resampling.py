"""Resampling with dynamic sizes, as one operator.

Before: ``upsample_nearest2d.vec(x, [h, w], None)``
After:  ``upsample_nearest2d(x, [h, w])``, which has a native rule

Torch's Python kernels would turn it into ``arange``, a product with the number ``x.shape[2] / h``, and ``index``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch._C import DispatchKey
from torch._decomp.decompositions import upsample_compute_output_size
from torch._ops import OpOverload

_NAMES = (
    "upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d", "_upsample_nearest_exact1d",
    "_upsample_nearest_exact2d", "_upsample_nearest_exact3d", "upsample_linear1d", "upsample_bilinear2d",
    "upsample_trilinear3d", "upsample_bicubic2d",
)  # fmt: skip
_KEYS = (DispatchKey.CompositeImplicitAutograd, DispatchKey.Autograd)
_MAX_DENOMINATOR = 2**10
_Sizes = Sequence[int | torch.SymInt]


@contextmanager
def whole_resampling() -> Iterator[None]:
    """While active, Python kernels of resampling are the operators themselves, except where gradients are recorded."""
    operators = [getattr(torch.ops.aten, name).vec for name in _NAMES]
    before = {operator: dict(operator.py_kernels) for operator in operators}
    for operator, kernels in before.items():
        operator.py_kernels |= {key: _whole(operator, kernels[key]) for key in _KEYS if key in kernels}
        operator._dispatch_cache.clear()
    try:
        yield
    finally:
        for operator, kernels in before.items():
            operator.py_kernels.clear()
            operator.py_kernels.update(kernels)
            operator._dispatch_cache.clear()


def _whole(operator: OpOverload, decomposed: Callable[..., Any]) -> Callable[..., Any]:
    plain = getattr(torch.ops.aten, operator._schema.name.removeprefix("aten::")).default

    def run(source: Any, output_size: _Sizes | None, *options: Any) -> Any:
        *corners, factors = options
        sizes = _sizes(source.shape, output_size, factors)
        for size in (*source.shape[2:], *sizes):
            torch._check(size > 0, lambda: "Input and output sizes should be greater than 0")
        if source.requires_grad and torch.is_grad_enabled():
            return decomposed(source, output_size, *options)
        with torch._C._AutoDispatchBelowAutograd():
            return plain(source, sizes, *corners, *(factors or ()))

    return run


def _sizes(shape: _Sizes, output_size: _Sizes | None, factors: Sequence[float] | None) -> list[Any]:
    """The sizes of the result; products with fractions such as 0.5 in integers, which is exact."""
    ratios = [float(factor).as_integer_ratio() for factor in factors or ()]
    if output_size is not None or any(denominator > _MAX_DENOMINATOR for _, denominator in ratios):
        return list(upsample_compute_output_size(shape, output_size, factors))
    return [size * above // below for size, (above, below) in zip(shape[2:], ratios, strict=True)]
