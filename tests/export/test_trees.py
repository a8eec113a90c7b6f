"""Random trees of arguments and results survive export, saving, loading and the call."""

import io
import json
from collections import OrderedDict, deque, namedtuple
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.utils import _pytree as pytree

from precast.errors import ArtifactError, ExportError
from precast.export import export, load, save
from precast.export.serialize.trees import tree_from_json, tree_to_json
from precast.graph.opened_objects import opened
from tests.export.models import Function

Point = namedtuple("Point", "x y")


@dataclass
class Pair:
    left: Any
    right: Any


pytree.register_dataclass(Pair, serialized_type_name="tests.export.test_trees.Pair")

leaves = st.one_of(
    st.builds(lambda size: torch.arange(float(size)), st.integers(0, 3)),
    st.none(),
    st.booleans(),
    st.integers(-(2**40), 2**40),
    st.floats(),
    st.text(max_size=5),
)
keys = st.one_of(st.text(max_size=4), st.integers(-5, 5))
trees = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.lists(inner, max_size=3).map(deque),
        st.dictionaries(keys, inner, max_size=3),
        st.dictionaries(st.text(max_size=3), inner, max_size=3).map(OrderedDict),
        st.builds(Point, inner, inner),
        st.builds(Pair, inner, inner),
    ),
    max_leaves=6,
)


def bump(tree: Any) -> Any:
    return pytree.tree_map(lambda leaf: leaf + 1 if isinstance(leaf, torch.Tensor) else leaf, tree)


def assert_same(left: Any, right: Any) -> None:
    left_leaves, left_tree = pytree.tree_flatten(left)
    right_leaves, right_tree = pytree.tree_flatten(right)
    assert left_tree == right_tree
    for a, b in zip(left_leaves, right_leaves, strict=True):
        same = torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b or (a != a and b != b)
        assert same, (a, b)


def check(tree: Any) -> None:
    exported = export(Function(bump), (tree,))
    file = io.BytesIO()
    save(exported, file)
    loaded = load(file)
    assert_same(loaded.module()(tree), bump(tree))
    assert_same(exported.module()(tree), bump(tree))
    assert_same(loaded.example_inputs[0][0], tree)


@settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(trees)
def test_random_trees(tree):
    check(tree)


@pytest.mark.slow
@settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck))
@given(trees)
def test_many_random_trees(tree):
    check(tree)


def test_a_class_that_is_not_registered_here_is_named():
    content = tree_to_json(pytree.tree_structure(Pair(1, 2)))
    content[1][0] = "elsewhere:Pair"
    with pytest.raises(ArtifactError, match="'elsewhere:Pair', which is not registered"):
        tree_from_json(content)


def test_a_named_tuple_from_elsewhere_is_made_again():
    content = tree_to_json(pytree.tree_structure(Point(1, 2)))
    content[1][0] = "elsewhere:Point"
    tree = tree_from_json(content)
    assert pytree.tree_unflatten([1, 2], tree)._fields == ("x", "y")


def test_a_program_takes_named_tuples_of_the_same_name():
    exported = export(Function(lambda point: point.x + point.y), (Point(torch.ones(2), torch.ones(2)),))
    file = io.BytesIO()
    save(exported, file)
    again = namedtuple("Point", "x y")
    assert load(file).module()(again(torch.ones(2), torch.zeros(2))).tolist() == [1, 1]


def test_a_context_that_is_no_plain_value_is_refused():
    class Odd:
        pass

    def flatten_with_keys(odd):
        return [(pytree.SequenceKey(0), torch.ones(1))], object()

    pytree.register_pytree_node(
        Odd,
        lambda odd: ([torch.ones(1)], object()),
        lambda leaves, context: Odd(),
        flatten_with_keys_fn=flatten_with_keys,
    )
    exported = export(Function(lambda odd: pytree.tree_leaves(odd)[0]), (Odd(),))
    with pytest.raises(ExportError, match="Odd cannot be saved"):
        save(exported, io.BytesIO())


@dataclass
class Record:
    left: Any
    right: Any


def test_attributes_of_objects_are_names_that_python_leaves_alone():
    _, tree = pytree.tree_flatten(opened(Record(torch.ones(1), torch.ones(2))))
    content = tree_to_json(tree)
    assert tree_from_json(content) == tree
    text = json.dumps(content)
    for name in ("__class__", "__dict__", "a b", "", "right"):
        with pytest.raises(ArtifactError, match="attributes of an object"):
            tree_from_json(json.loads(text.replace('"left"', json.dumps(name))))
    for children in (["*"], ["*"] * 3):
        with pytest.raises(ArtifactError, match="other attributes than values"):
            tree_from_json([*content[:2], children])
    for context in (None, [], [1], "x", {"tuple": []}, {"tuple": [{"dict": []}, 1]}):
        with pytest.raises(ArtifactError):
            tree_from_json([content[0], [content[1][0], context], content[2]])
