"""Questions about random numbers whose answer is certain: ``torch.rand([]) < 0.0`` is never true.

Models that drop layers at random ask so in Python for each layer, even where the probability is 0, as it mostly is.

Before: ``if torch.rand([]) < layerdrop`` ends the capture, as a value would decide.
After:  it is answered for a ``layerdrop`` of 0 or 1.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils.weak import WeakIdKeyDictionary

_aten = torch.ops.aten
_DRAWS = {_aten.rand.default, _aten.rand_like.default}
# What holds for all numbers from 0 up to, but not including, 1, for a limit of at most 0, and of at least 1.
_WHEN_LOW = {_aten.lt.Scalar: False, _aten.ge.Scalar: True}
_WHEN_HIGH = {_aten.lt.Scalar: True, _aten.le.Scalar: True, _aten.gt.Scalar: False, _aten.ge.Scalar: False}


class CertainAnswers:
    """Remembers which fake tensors are drawn from [0, 1), and which comparisons of those data cannot change."""

    def __init__(self) -> None:
        self._drawn: Any = WeakIdKeyDictionary()
        self._answers: Any = WeakIdKeyDictionary()

    def note(self, func: Any, args: Sequence[Any], result: Any) -> None:
        """Learn from an operator and its result."""
        if func in _DRAWS:
            self._drawn[result] = True
        elif (func in _WHEN_LOW or func in _WHEN_HIGH) and args[0] in self._drawn:
            limit = args[1]
            if isinstance(limit, int | float):
                answer = _WHEN_LOW.get(func) if limit <= 0 else _WHEN_HIGH.get(func) if limit >= 1 else None
                if answer is not None:
                    self._answers[result] = answer

    def answer(self, func: Any, args: Sequence[Any]) -> bool | None:
        """What reading a tensor's only value gives; None if that depends on data."""
        if func is not _aten._local_scalar_dense.default:
            return None
        answer: bool | None = self._answers.get(args[0])
        return answer
