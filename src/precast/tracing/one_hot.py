"""``one_hot`` as in eager, where classes are checked: torch takes it apart unchecked where data are fake.

Before: ``one_hot(x, 3)`` is traced as ``eq(unsqueeze(x), arange(3))``.
After:  it is traced as ``scatter(zeros(…, 3), unsqueeze(x), 1)``.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor


def is_one_hot(func: object, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether this is a call with a number of classes; of other calls, torch says what is wrong with them."""
    if func is not torch.nn.functional.one_hot:
        return False
    given = dict(zip(("tensor", "num_classes"), args, strict=False)) | dict(kwargs)
    tensor, classes = given.get("tensor"), given.get("num_classes", -1)
    is_count = isinstance(classes, int | torch.SymInt) and classes > 0
    return isinstance(tensor, Tensor) and tensor.dtype is torch.int64 and is_count


def one_hot(tensor: Tensor, num_classes: int) -> Tensor:
    """One where the class is, else zero."""
    none = tensor.new_zeros((*tensor.shape, num_classes))
    return none.scatter(-1, tensor.unsqueeze(-1), 1)
