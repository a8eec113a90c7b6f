"""Paths to the leaves of trees whose classes are users' own."""

import torch
from torch.utils import _pytree as pytree

from precast.graph.opened_objects import result_names


class Paired:
    """A class that looks into its parts when it is built."""

    def __init__(self, keys: list[torch.Tensor], values: list[torch.Tensor]) -> None:
        self.pairs = list(zip(keys, values, strict=True))


def _flatten(pairs: Paired) -> tuple[list[list[torch.Tensor]], None]:
    return [[key for key, _ in pairs.pairs], [value for _, value in pairs.pairs]], None


def test_classes_that_look_into_their_parts_have_numbered_leaves():
    pytree.register_pytree_node(
        Paired,
        _flatten,
        lambda parts, _: Paired(*parts),
        flatten_with_keys_fn=lambda pairs: (
            [(pytree.GetAttrKey(n), p) for n, p in zip("kv", _flatten(pairs)[0], strict=True)],
            None,
        ),
    )
    try:
        tree = pytree.tree_structure({"past": Paired([torch.ones(1)], [torch.ones(1)])})
        assert result_names(tree) == ["past_0_0", "past_1_0"]
    finally:
        pytree._deregister_pytree_node(Paired)
