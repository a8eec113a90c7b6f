"""``quantile`` and ``nanquantile`` as in eager, which checks shares: torch does not look at them where data are fake.

Before: ``quantile(x, q)`` is traced as what it is made of; a ``q`` of -0.1 gives the least number.
After:  ``q`` goes through a ``gather`` that has a place for shares from 0 to 1 alone.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

_QUANTILES = frozenset({torch.quantile, torch.nanquantile, Tensor.quantile, Tensor.nanquantile})


def is_quantile(func: object, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether this is a call whose shares are data; numbers are looked at while they are traced."""
    share = _share(args, kwargs) if func in _QUANTILES else None
    return isinstance(share, Tensor) and share.device.type == "cpu" and share.is_floating_point()


def checked_quantile(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """The call, with an error at run time where a share is none."""
    share = _share(args, kwargs)
    is_none = ~((share >= 0) & (share <= 1))
    nothing = share.new_zeros(1).gather(0, is_none.reshape(-1).long()).reshape(share.shape)
    if "q" in kwargs:
        return func(*args, **{**kwargs, "q": share + nothing})
    return func(args[0], share + nothing, *args[2:], **kwargs)


def _share(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    return kwargs["q"] if "q" in kwargs else args[1] if len(args) > 1 else None
