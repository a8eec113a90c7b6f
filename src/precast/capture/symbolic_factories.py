"""Functions that make tensors out of nothing, recorded while a program is traced symbolically.

Before: ``torch.arange(x.shape[1])`` raises: ``arange`` does not know what a proxy is
After:  ``arange = call_function(torch.arange, (getitem,))``

They are exchanged in ``torch`` itself, and put back whatever happens.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

# Make tensors: recorded always, so that no constant is baked in and a program on the meta device stays there.
_MAKERS = (
    "arange", "as_tensor", "asarray", "empty", "empty_strided", "eye", "from_numpy", "full", "linspace", "logspace",
    "ones", "rand", "randint", "randn", "randperm", "scalar_tensor", "tensor", "tril_indices", "triu_indices", "zeros",
)  # fmt: skip
# Make no tensor: recorded where they are asked about a traced value.
_INQUIRERS = ("finfo", "iinfo")


@contextmanager
def recorded_factories(tracer: fx.Tracer) -> Iterator[None]:
    """While active, factory functions of ``torch`` make nodes of the traced graph."""
    originals = {name: getattr(torch, name) for name in (*_MAKERS, *_INQUIRERS)}
    try:
        for name, original in originals.items():
            setattr(torch, name, _recording(original, tracer, always=name in _MAKERS))
        yield
    finally:
        for name, original in originals.items():
            setattr(torch, name, original)


def _recording(original: Callable[..., Any], tracer: fx.Tracer, *, always: bool) -> Callable[..., Any]:
    @wraps(original, updated=())
    def record(*args: Any, **kwargs: Any) -> Any:
        if always or has_proxy((args, kwargs)):
            return tracer.create_proxy("call_function", original, args, kwargs)
        return original(*args, **kwargs)

    return record


def has_proxy(value: Any) -> bool:
    """Whether a traced value is somewhere in there."""
    return any(isinstance(leaf, fx.Proxy) for leaf in pytree.tree_leaves(value))
