"""From the model's outputs to what the user's model returns, and the other way round, in named steps.

Before: ``[logits]``, the tensors that the model gives
After:  ``{"loss": None, "logits": logits}``

``keep_tensors`` and ``flatten_result`` lead to the model's outputs; ``put_back_constants`` and ``rebuild`` back.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from precast.ir.opened_objects import leaf_paths, opened
from precast.ir.program import Program
from precast.ir.signature import OutputKind


def flatten_result(result: Any) -> list[Any]:
    """Every leaf of what a model returned."""
    return pytree.tree_leaves(opened(result))


def keep_tensors(leaves: Sequence[Any], constants: Sequence[object]) -> list[torch.Tensor]:
    """The leaves that the ONNX model computes: those that are not constants of the program."""
    return [leaf for leaf, constant in zip(leaves, constants, strict=True) if constant is _COMPUTED]


def put_back_constants(outputs: Sequence[Any], constants: Sequence[object]) -> list[Any]:
    """The model's outputs with the constants between them."""
    remaining = iter(outputs)
    return [next(remaining) if constant is _COMPUTED else constant for constant in constants]


def rebuild(leaves: Sequence[Any], tree: pytree.TreeSpec) -> Any:
    """The containers that the user's model returns."""
    return pytree.tree_unflatten(leaves, tree)


_COMPUTED = object()


@dataclass(frozen=True)
class OutputAdapter:
    """The steps with what they need to know of one exported model."""

    tree: pytree.TreeSpec
    constants: tuple[object, ...]
    names: tuple[str, ...]

    @classmethod
    def of(cls, program: Program) -> "OutputAdapter":
        pairs = zip(program.signature.outputs, program.results, strict=True)
        results = [result for spec, result in pairs if spec.kind is OutputKind.USER_OUTPUT]
        constants = tuple(_COMPUTED if isinstance(result, fx.Node) else result for result in results)
        return cls(program.signature.out_tree, constants, _names(program.signature.out_tree, constants))

    def to_model(self, result: Any) -> list[torch.Tensor]:
        """The tensors among what the user's model returned, in the order of the ONNX outputs."""
        return keep_tensors(flatten_result(result), self.constants)

    def to_user(self, outputs: Sequence[Any]) -> Any:
        """What the user's model returns, of the ONNX model's outputs."""
        return rebuild(put_back_constants(outputs, self.constants), self.tree)


def _names(tree: pytree.TreeSpec, constants: Sequence[object]) -> tuple[str, ...]:
    """Names of the computed outputs, after their places in what the model returns."""
    paths = leaf_paths(tree)
    return tuple(_name(path) for path, constant in zip(paths, constants, strict=True) if constant is _COMPUTED)


def _name(path: Sequence[Any]) -> str:
    parts = [str(getattr(key, "key", getattr(key, "idx", getattr(key, "name", key)))) for key in path]
    return "_".join(parts if parts and not parts[0].isdigit() else ["output", *parts])
