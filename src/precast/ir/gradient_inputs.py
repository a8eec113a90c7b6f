"""``.grad`` of a program's inputs: read as inputs, written as results.

Before: ``w.grad.mul_(0.5); w.sub_(w.grad); v.grad = None``
After:  one more input for ``w.grad``, and what ``v.grad`` is afterwards as one more result
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class GradientInputs:
    """The inputs (``owners``, by position) whose ``.grad`` a program uses.

    Those that have one (``present``) have it as an input that follows all others, in order.
    """

    owners: tuple[int, ...] = ()
    present: tuple[bool, ...] = ()

    def read(self, inputs: Sequence[Any]) -> list[Any]:
        """The owners' gradients now, with None where there is none, or no owner any more."""
        found = [inputs[owner] for owner in self.owners]
        return [None if each is None else each.grad for each in found]

    def split(self, flat: Sequence[Any]) -> tuple[Sequence[Any], list[Any]]:
        """The inputs without gradients, and the gradient of each owner, or None."""
        start = len(flat) - sum(self.present)
        given = iter(flat[start:])
        return flat[:start], [next(given) if is_present else None for is_present in self.present]

    def put(self, inputs: Sequence[Any], gradients: Sequence[Any]) -> None:
        """Give the owners their gradients before a run."""
        for owner, gradient in zip(self.owners, gradients, strict=True):
            if gradient is not None:
                inputs[owner].grad = gradient

    def written(self, inputs: Sequence[Any], gradients: Sequence[Any]) -> dict[int, Any]:
        """What ``.grad`` of owners is after a run, where that is another one than before."""
        known = zip(self.owners, self.read(inputs), gradients, strict=True)
        return {owner: now for owner, now, before in known if now is not before}


NO_GRADIENTS = GradientInputs()


def has_hooks(tensor: Any) -> bool:
    """Whether a backward that reaches ``tensor`` calls anyone."""
    return tensor is not None and bool(tensor._backward_hooks or tensor._post_accumulate_grad_hooks)
