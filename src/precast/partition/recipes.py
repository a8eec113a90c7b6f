"""Other ways to a value, for values whose own op should not run again.

Dropout draws random numbers, but its result follows from its input and its mask::

    getitem   = native_dropout(x, p)[0]          =        native_dropout_backward(x, mask, 1 / (1 - p))
    mask      = native_dropout(x, p)[1]

A recipe gives the same bits as the op itself, or it is no recipe.
"""

import operator
from dataclasses import dataclass

import torch
from torch import fx
from torch._ops import OpOverload

_aten = torch.ops.aten
# In narrower types the kernel keeps more precision between its two multiplications than two ops would.
_DROPOUT_DTYPES = frozenset({torch.float32, torch.float64})


@dataclass(frozen=True)
class Recipe:
    """A call that computes a value from other values than its own node does."""

    op: OpOverload
    args: tuple[fx.Node | float, ...]


def recipe_of(node: fx.Node) -> Recipe | None:
    """Return another way to compute ``node``, if there is one that is exact."""
    if node.target is not operator.getitem or node.args[1] != 0:
        return None
    dropout = node.args[0]
    if not isinstance(dropout, fx.Node) or dropout.target is not _aten.native_dropout.default:
        return None
    x, probability, *train = dropout.args
    value = node.meta.get("val")
    mask = next((user for user in dropout.users if user.args[1:] == (1,)), None)
    if mask is None or not isinstance(x, fx.Node) or not isinstance(probability, float) or not 0 < probability < 1:
        return None
    if train == [False] or not isinstance(value, torch.Tensor):
        return None
    if value.device.type != "cpu" or value.dtype not in _DROPOUT_DTYPES:
        return None
    return Recipe(_aten.native_dropout_backward.default, (x, mask, 1 / (1 - probability)))


def operands_to_recompute(node: fx.Node) -> list[fx.Node]:
    """Return what has to be there to compute ``node`` again."""
    recipe = recipe_of(node)
    if recipe is None:
        return node.all_input_nodes
    return [argument for argument in recipe.args if isinstance(argument, fx.Node)]
