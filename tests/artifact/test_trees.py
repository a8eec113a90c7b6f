"""Trees and constants of files, read without torch as with it."""

import json
from collections import OrderedDict, defaultdict, deque, namedtuple

import numpy as np
import pytest
import torch
from torch.utils import _pytree as pytree

from precast.artifact.constants import NAMED, Named
from precast.artifact.trees import Tree, read_tree
from precast.errors import ArtifactError
from precast.export.serialize.constants import CONSTANTS, constant_to_json
from precast.export.serialize.trees import tree_to_json
from precast.runtime.trees import Record, TreeMismatchError, flatten, tree_text, unflatten, value_text

Point = namedtuple("Point", "x y")
VALUES = [
    1, (), [], {}, (1, [2, {"a": 3, "b": (4,)}]), OrderedDict(b=1, a=2), deque([1, 2], 5), defaultdict(list, k=1),
    Point(1, [2]), {1: 2, None: 3, ("t", 1): 4}, [[[[1]]]],
]  # fmt: skip


@pytest.mark.parametrize("value", VALUES, ids=str)
def test_values_come_back_as_they_were(value):
    leaves, spec = pytree.tree_flatten(value)
    tree = read_tree(tree_to_json(spec))
    assert [leaf for _, leaf in flatten(tree, value, "")] == leaves
    made = unflatten(tree, iter(leaves))
    assert made == value
    assert type(made) is type(value)
    assert tree.leaf_count() == len(leaves)


def tree_of(value):
    return read_tree(tree_to_json(pytree.tree_structure(value)))


def test_leaves_have_paths():
    value = ({"a": [1, 2]}, Point(3, 4))
    paths = [path for path, _ in flatten(tree_of(value), value, "args")]
    assert paths == ["args[0]['a'][0]", "args[0]['a'][1]", "args[1].x", "args[1].y"]


@pytest.mark.parametrize(
    ("expected", "given"),
    [((1,), [1]), ([1], (1,)), ([1], [1, 2]), ({"a": 1}, {"b": 1}), ({"a": 1}, {"a": 1, "b": 2}), ([1], 3),
     (Point(1, 2), (1, 2)), (OrderedDict(a=1), {"a": 1}), ({"a": [1]}, {"a": (1,)})],
    ids=str,
)  # fmt: skip
def test_other_structures_do_not_fit(expected, given):
    with pytest.raises(TreeMismatchError):
        flatten(tree_of(expected), given, "args")


def test_order_in_dicts_and_fx_containers_do_not_matter():
    tree = tree_of({"a": 1, "b": [2]})
    assert [leaf for _, leaf in flatten(tree, {"b": [2], "a": 1}, "")] == [1, 2]
    from torch.fx.immutable_collections import immutable_dict, immutable_list

    assert [leaf for _, leaf in flatten(tree, immutable_dict(a=1, b=immutable_list([2])), "")] == [1, 2]


def test_texts():
    assert tree_text(tree_of(((1, {"m": 2}), [3]))) == "((*, {'m': *}), [*])"
    assert value_text((torch.ones(1), {"m": [1]})) == "(*, {'m': [*]})"


def test_a_class_that_is_not_here_comes_as_a_record():
    tree = read_tree(["class", ["models:Output", [], [{"str": "logits"}, {"str": "loss"}]], ["*", "*"]])
    record = unflatten(tree, iter([1, 2]))
    assert isinstance(record, Record)
    assert (record.logits, record["loss"], record[0], list(record), len(record)) == (1, 2, 1, [1, 2], 2)
    assert repr(record) == "Output(logits=1, loss=2)"
    with pytest.raises(AttributeError, match="Output has no 'other'"):
        _ = record.other
    assert [leaf for _, leaf in flatten(tree, record, "")] == [1, 2]
    assert [leaf for _, leaf in flatten(tree, {"loss": 2, "logits": 1}, "")] == [1, 2]


class Tagged:
    """A container that keeps more than its children."""

    def __init__(self, children, context):
        self.children, self.context = children, context


def test_a_class_gets_back_what_it_keeps_besides_its_children():
    pytree.register_pytree_node(Tagged, lambda each: (each.children, each.context), Tagged)
    kept = [Tagged, (torch.float32, b"bytes", float("inf")), {"axis": 1, 2: torch.device("cpu")}]
    tree = tree_of(Tagged([1, 2], kept))
    made = unflatten(tree, iter([1, 2]))
    assert isinstance(made, Tagged)
    assert made.children == [1, 2]
    assert made.context == kept
    assert (type(made.context[1][0]), type(made.context[2][2])) == (torch.dtype, torch.device)


def nested(depth):
    content = "*"
    for _ in range(depth):
        content = ["list", [], [content]]
    return content


@pytest.mark.parametrize(
    "content",
    [
        None, 3, "x", [], ["list"], ["list", [], "*"], ["set", [], ["*"]], ["dict", [], ["*"]], ["dict", 3, []],
        ["dict", [{"str": "a"}, {"str": "a"}], ["*", "*"]], ["dict", [[1]], ["*"]], ["namedtuple", ["a:b", ["x"]], []],
        ["namedtuple", ["a:b", ["not a name"]], ["*"]], ["class", ["x"], []], ["class", [3, []], []],
        ["class", ["x" * 1000, []], []], [3, [], []], nested(200),
    ],
    ids=lambda content: str(content)[:40],
)  # fmt: skip
def test_strange_trees_are_refused(content):
    with pytest.raises(ArtifactError):
        read_tree(content)


VALUES_OF_KINDS = [
    None, True, 3, 1.5, "text", [1, "a"], (1, (2, "b")), {"k": [1], 2: None}, b"bytes", 1 + 2j, float("inf"),
    slice(1, None, 2), ..., np.float64("-inf"),
]  # fmt: skip


@pytest.mark.parametrize("value", VALUES_OF_KINDS, ids=str)
def test_constants_are_read_as_they_were(value):
    content = json.loads(json.dumps(constant_to_json(value), allow_nan=False))
    assert NAMED.read(content) == value
    assert CONSTANTS.read(content) == value


@pytest.mark.parametrize("value", [torch.float32, torch.strided, torch.channels_last, torch.device("cpu")], ids=str)
def test_torchs_own_values_are_known_by_name(value):
    read = NAMED.read(constant_to_json(value))
    assert isinstance(read, Named)
    assert read == value
    assert read != torch.int8
    assert read == NAMED.read(constant_to_json(value))


@pytest.mark.parametrize(
    "content",
    ["name", {}, {"str": 1}, {"a": 1, "b": 2}, {"pickle": "x"}, {"tuple": 3}, {"slice": [1]}, {"bytes": "zz"},
     {"float": "1e5"}, {"dict": [[1]]}, {"dict": [[[1], 2]]}, {"complex": ["x", "y"]}, {"complex": []},
     {"dtype": "x" * 300}, {"dtype": ["float32"]}, {"complex": ["0x1p99999", "0x0p0"]}, {"dict": [["name", 1]]}],
    ids=lambda content: str(content)[:40],
)  # fmt: skip
@pytest.mark.parametrize("codec", [NAMED, CONSTANTS], ids=["without torch", "with torch"])
def test_strange_constants_are_refused(content, codec):
    with pytest.raises(ArtifactError):
        codec.read(content)


def test_deep_constants_are_refused():
    content = 1
    for _ in range(200):
        content = [content]
    with pytest.raises(ArtifactError):
        NAMED.read(content)


def test_a_leaf_is_a_tree():
    assert read_tree("*") == Tree()
