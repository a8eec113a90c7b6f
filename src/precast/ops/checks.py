"""An operator for what eager checks of values: decompositions put it where the kernel they stand for would look."""

import torch
from torch import Tensor

_library = torch.library.Library("precast", "FRAGMENT")
_library.define("checked(Tensor value, Tensor is_wrong, str error, str message) -> Tensor")
_KINDS = {"index": IndexError, "value": RuntimeError}


def _checked(value: Tensor, is_wrong: Tensor, error: str, message: str) -> Tensor:
    if bool(is_wrong.any()):
        raise _KINDS[error](message)
    return value.clone()


def _fake_checked(value: Tensor, is_wrong: Tensor, error: str, message: str) -> Tensor:
    return torch.empty_like(value)


for _processor in ("CPU", "CUDA"):
    _library.impl("checked", _checked, _processor)
torch.library.register_fake("precast::checked", _fake_checked, lib=_library)

checked = torch.ops.precast.checked.default
"""``checked(value, is_wrong, error, message)``: `value`, if none of `is_wrong` is true; `error` is index or value."""
