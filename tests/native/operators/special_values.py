"""Calls of operators with numbers that are none, too large or too small in their operands, one operand at a time."""

import math
from collections.abc import Callable, Iterator

import torch
from torch.testing._internal.opinfo.core import SampleInput
from torch.utils import _pytree as pytree

from tests.native.operators.op_samples import Case, like_eager

KINDS: dict[str, tuple[float, ...]] = {
    "NaN": (math.nan,),
    "inf": (math.inf,),
    "-inf": (-math.inf,),
    "zeros": (0.0, -0.0, 0.0),
    "huge": (3e37, -3e37),
    "subnormal": (1e-40, -1e-41),
    "all": (math.nan, math.inf, -math.inf, 0.0),
}
"""What is put into an operand, spread over it."""


def variants(sample: SampleInput) -> Iterator[tuple[str, SampleInput]]:
    """The call with each kind of number in each of its operands."""
    call = (sample.input, sample.args, sample.kwargs)
    operands = {
        id(each): each
        for each in pytree.tree_leaves(call)
        if isinstance(each, torch.Tensor) and each.is_floating_point() and each.numel() and _is_plain(each)
    }
    for number, operand in enumerate(operands.values()):
        for kind, values in KINDS.items():
            changed = _changed(operand.detach(), values).requires_grad_(operand.requires_grad)
            input_, args, kwargs = pytree.tree_map_only(
                torch.Tensor, lambda each, was=operand, now=changed: now if each is was else each, call
            )
            made = SampleInput(input_, args=args, kwargs=kwargs)
            made.output_process_fn_grad = sample.output_process_fn_grad
            yield f"{kind} in operand {number}", made


def _is_plain(tensor: torch.Tensor) -> bool:
    return tensor.layout is torch.strided and not torch._debug_has_internal_overlap(tensor)


def _changed(operand: torch.Tensor, values: tuple[float, ...]) -> torch.Tensor:
    changed = torch.empty_strided(operand.shape, operand.stride(), dtype=operand.dtype).copy_(operand)
    count = operand.numel()
    for number, value in enumerate(values):
        place = (1 + number * max(1, count // len(values))) % count
        changed[torch.unravel_index(torch.tensor(place), operand.shape)] = value
    return changed


def like_eager_with_special_values(case: Case, sample: SampleInput, compiled: Callable[..., object]) -> None:
    """All variants are as good as eager's; a failure tells which are not."""
    found = []
    for words, variant in variants(sample):
        try:
            like_eager(case, variant, compiled)
        except Exception as problem:  # noqa: BLE001
            found.append(f"{words}: {type(problem).__name__}: {problem}")
    assert not found, "\n".join(found)
