"""Dropout that is turned off returns its input as in eager: torch copies it where sizes are symbols.

Before: ``dropout(x, 0.5, training=False)`` is traced as ``clone(x)``.
After:  it is ``x`` itself.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

_NAMES = {
    torch.nn.functional.dropout: ("input", "p", "training", "inplace"),
    torch.dropout: ("input", "p", "train"),
}


def is_idle_dropout(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether a call returns its first argument; what is wrong with others, torch says."""
    if func not in (torch.nn.functional.dropout, torch.dropout):
        return False
    given = {"p": 0.5} | dict(zip(_NAMES[func], args, strict=False)) | dict(kwargs)
    is_off = given.get("training", given.get("train", True)) is False
    is_plain = bool(args) and isinstance(args[0], Tensor) and isinstance(given["p"], int | float)
    return is_off and is_plain and 0 <= given["p"] <= 1
