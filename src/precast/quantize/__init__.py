"""Models over weights of few bits: ``precast.quantize(model, "int8")``."""

import sys
from types import ModuleType
from typing import Any

from precast.lazy_names import naming_extras

with naming_extras("precast.quantize"):
    from torch import nn

    from precast.quantize.layers import QuantizedConv, QuantizedEmbedding, QuantizedLinear, QuantizedWeight
    from precast.quantize.quantize import quantize
    from precast.quantize.stored_layouts import from_stored, with_stored_weights

__all__ = [
    "QuantizedConv",
    "QuantizedEmbedding",
    "QuantizedLinear",
    "QuantizedWeight",
    "from_stored",
    "quantize",
    "with_stored_weights",
]


class _CallablePackage(ModuleType):
    """Lets ``precast.quantize(model)`` stand beside ``precast.quantize.QuantizedLinear``."""

    def __call__(self, *args: Any, **kwargs: Any) -> nn.Module:
        return quantize(*args, **kwargs)


sys.modules[__name__].__class__ = _CallablePackage
