"""One model and one call of it: what tests over real architectures are given."""

from dataclasses import dataclass, field
from typing import Any

import torch


class NotJudgedError(Exception):
    """The model cannot be made small by its configuration, or eager does not run it: there is nothing to compare."""


@dataclass(frozen=True)
class Example:
    """One model, one call, and the sizes of that call that may change; ``other_kwargs`` is a call of other sizes."""

    module: torch.nn.Module
    kwargs: dict[str, Any]
    dynamic_shapes: dict[str, Any] = field(default_factory=dict)
    other_kwargs: dict[str, Any] = field(default_factory=dict)
    args: tuple[Any, ...] = ()

    def train(self, training: bool = True) -> "Example":
        """Switch the module to training or eval; whole layers are never dropped at random, as no graph can do that."""
        self.module.train(training)
        for module in self.module.modules():
            if hasattr(module, "layerdrop") or "layerdrop" in type(module).forward.__code__.co_names:
                module.training = False
        return self
