"""Runs eager fallbacks: calls the operator with the graph's arguments."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from precast.native.loops.index import Index, evaluate
from precast.native.loops.program import Argument, FallbackStep, Slot
from precast.ops.own_operators import operator_named


def run_step(step: FallbackStep, inputs: Sequence[torch.Tensor], sizes: dict[str, int]) -> tuple[torch.Tensor, ...]:
    """Call the operator with the graph's arguments."""

    def decode(argument: Argument) -> object:
        if isinstance(argument, Slot):
            return inputs[argument.position]
        if isinstance(argument, Index):
            return evaluate(argument, lambda atom: sizes[atom.name])
        if isinstance(argument, str) and argument.startswith("torch."):
            # A dtype, a layout or a memory format, by its name.
            return getattr(torch, argument.removeprefix("torch."))
        return [decode(item) for item in argument] if isinstance(argument, tuple) else argument

    keywords = {key: decode(value) for key, value in step.keyword_arguments}
    with torch.no_grad():
        result = operator_named(step.operator)(*map(decode, step.arguments), **keywords)
    results = result if isinstance(result, tuple | list) else (result,)
    return tuple(each for each in results if isinstance(each, torch.Tensor))
