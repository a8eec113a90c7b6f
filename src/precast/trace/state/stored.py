"""What a run left in Python state, and the same with the values of later runs.

Before: ``self.attention = weights; history.append(loss.detach())``, run once on fake tensors
After:  ``put([weights, loss])`` after each run of the graph, which returns them
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from precast.errors import StateMutationError
from precast.trace.captured_tensors import is_real_tensor
from precast.trace.state.references import KeptContainer, References
from precast.trace.state.snapshot import Write, Writes, traced_tensors


@dataclass(frozen=True)
class Stored:
    """Writes to Python state and the leaves of their values, of which traced ones differ from run to run."""

    writes: Writes
    leaves: tuple[Any, ...]

    @classmethod
    def of(cls, writes: Sequence[Write], references: References) -> Stored:
        leaves, found = Writes.of(writes, references)
        if any(type(leaf) is set and traced_tensors(leaf) for leaf in leaves):
            raise StateMutationError(
                "The program stores tensors in a set.",
                at="; ".join(write.path for write in writes),
                why="a set has no order by which the tensors of each run could be told apart",
                fix="Store them in a list or a dictionary.",
            )
        return cls(found, tuple(leaves))

    def __bool__(self) -> bool:
        return bool(self.writes)

    @property
    def paths(self) -> list[str]:
        """The places that are written."""
        return [write.path for write in self.writes.writes]

    @property
    def traced(self) -> list[Any]:
        """The leaves that a graph computes."""
        return list(filter(is_traced, self.leaves))

    def put(self, values: Sequence[Any]) -> None:
        """Repeat the writes, with these values of the traced leaves."""
        if not self:
            return
        computed = iter(values)
        leaves = [next(computed) if is_traced(leaf) else leaf for leaf in self.leaves]
        self.writes.put([leaf.read() if isinstance(leaf, KeptContainer) else leaf for leaf in leaves])


def is_traced(value: Any) -> bool:
    """Whether it is a tensor or a number of a trace."""
    if isinstance(value, torch.Tensor):
        return not is_real_tensor(value)
    return isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool)


NOTHING_STORED = Stored(Writes(), ())
