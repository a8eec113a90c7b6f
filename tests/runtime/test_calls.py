"""Calls of packaged models are checked: what does not fit is named by its path, with what was expected."""

import numpy as np
import pytest
import torch

import precast
import precast.runtime
from precast.artifact.calls import read_call
from precast.errors import ArgumentsError, InputValueError
from precast.runtime.call import checked_leaves, result_of


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    def function(inputs, pair, *, flag, scale=1.0):
        x, y = inputs["x"], inputs["y"]
        return x @ pair[0] + (y.sum() if flag else 0) * scale

    n, m = precast.Dim("n", min=2, max=16), precast.Dim("m", min=1, max=32)
    arguments = ({"x": torch.randn(4, 3), "y": torch.randn(8)}, [torch.randn(3, 5), torch.zeros(2)])
    shapes = {"inputs": {"x": {0: n}, "y": {0: 2 * n}}, "pair": [{1: m}, None], "flag": None, "scale": None}
    path = tmp_path_factory.mktemp("calls") / "model.precast"
    keywords = {"flag": True, "scale": 1.0}
    return precast.runtime.load(precast.package(function, arguments, keywords, path=path, dynamic_shapes=shapes))


def call(model, x=(4, 3), y=(8,), weight=(3, 5), rest=(2,), **keywords):
    inputs = {"x": np.ones(x, np.float32), "y": np.ones(y, np.float32)}
    given = {"flag": True, "scale": 1.0, **keywords}
    return model(inputs, [np.ones(weight, np.float32), np.ones(rest, np.float32)], **given)


def test_what_fits_is_computed(model):
    assert call(model, x=(2, 3), y=(4,), weight=(3, 1)).tolist() == [[7.0], [7.0]]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"x": (4, 4)}, r"inputs\['x'\]\.shape\[1\] is 4, but the program was captured with 3"),
        ({"y": (9,)}, r"inputs\['y'\]\.shape\[0\] is 9, but the other sizes make it 8"),
        ({"x": (1, 3), "y": (2,)}, r"inputs\['x'\]\.shape\[0\] is 1, outside of n in 2\.\.16"),
        ({"weight": (3, 33)}, r"pair\[0\]\.shape\[1\] is 33, outside of m in 1\.\.32"),
        ({"weight": (3,)}, r"pair\[0\] has 1 dimensions, but the program was captured with 2: f32\[3, m\]"),
        ({"rest": (3,)}, r"pair\[1\]\.shape\[0\] is 3"),
        ({"flag": False}, r"flag is False, but the program was captured with True"),
        ({"flag": 1}, r"flag is 1, but the program was captured with True"),
        ({"scale": 2.0}, r"scale is 2\.0, but the program was captured with 1\.0"),
        ({"x": (4, 4), "y": (9,)}, r"\['x'\]\.shape\[1\] is 4.*; inputs\['y'\]\.shape\[0\] is 9"),
    ],
)
def test_what_does_not_fit_is_named(model, changes, message):
    with pytest.raises(InputValueError, match=message):
        call(model, **changes)


def test_other_dtypes_and_values_are_named(model):
    good = np.ones((3, 5), np.float32)
    for value, message in (
        (good.astype(np.float64), "is float64, but the program was captured with float32"),
        ("text", r"is 'text', but the program was captured with a tensor, f32\[3, m\]"),
        ([[1.0]], r"is \[\[1\.0\]\], but the program was captured with a tensor"),
        (3, "is 3, but the program was captured with a tensor"),
    ):
        arguments = ({"x": np.ones((4, 3), np.float32), "y": np.ones(8, np.float32)}, [value, np.ones(2, np.float32)])
        with pytest.raises(InputValueError, match=rf"pair\[0\] {message}"):
            model(*arguments, flag=True, scale=1.0)


def test_tensors_elsewhere_are_named(model):
    meta = torch.ones(3, 5, device="meta")
    inputs = {"x": torch.ones(4, 3), "y": torch.ones(8)}
    with pytest.raises(InputValueError, match=r"pair\[0\] is on meta, but the program was captured with cpu"):
        model(inputs, [meta, torch.ones(2)], flag=True, scale=1.0)


@pytest.mark.parametrize(
    "change",
    [
        lambda a, k: ((a[0], tuple(a[1])), k),
        lambda a, k: (({"x": a[0]["x"]}, a[1]), k),
    ],
)
def test_other_structures_are_told_with_the_expected_one(model, change):
    arguments = ({"x": np.ones((4, 3), np.float32), "y": np.ones(8, np.float32)}, [np.ones((3, 5)), np.ones(2)])
    args, kwargs = change(arguments, {"flag": True, "scale": 1.0})
    expected = r"expected \(\(\{'x': \*, 'y': \*\}, \[\*, \*\]\), \{'flag': \*, 'scale': \*\}\), got"
    with pytest.raises(InputValueError, match=expected):
        model(*args, **kwargs)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda a, k: ((a[0],), k), r"Missing the argument 'pair'\.\n.*takes \(inputs, pair, flag=, scale=\)"),
        (lambda a, k: (a, {"flag": True}), "Missing the argument 'scale'"),
        (lambda a, k: ((), {}), "Missing the arguments 'inputs', 'pair', 'flag', 'scale'"),
        (lambda a, k: (a, {**k, "other": 1}), "There is no argument 'other'"),
        (lambda a, k: (a, {**k, "pair": 1}), "Got the argument 'pair' twice"),
        (lambda a, k: ((*a, a[0], a[0], a[0]), k), "Got 5 positional arguments instead of 2"),
    ],
)
def test_arguments_that_are_missing_or_unknown_are_named(model, change, message):
    arguments = ({"x": np.ones((4, 3), np.float32), "y": np.ones(8, np.float32)}, [np.ones((3, 5)), np.ones(2)])
    args, kwargs = change(arguments, {"flag": True, "scale": 1.0})
    with pytest.raises(ArgumentsError, match=message) as failure:
        model(*args, **kwargs)
    assert isinstance(failure.value, TypeError)


def test_a_whole_number_that_is_a_size():
    content = {
        "argument_names": ["x", "times"],
        "in_tree": ["tuple", [], [["tuple", [], ["*", "*"]], ["dict", [], []]]],
        "out_tree": ["tuple", [], ["*", "*"]],
        "leaves": [{"tensor": {"dtype": "f32", "shape": [["Mul", 3, "s0"]]}}, {"size": "s1"}],
        "results": [{"output": 0}, {"size": ["Mul", "s0", "s1"]}],
        "updates": [],
        "symbols": [
            {"symbol": symbol, "name": name, "seen_at": "args", "range": [1, 5]}
            for symbol, name in (("s0", "n"), ("s1", "times"))
        ],
        "guards": [{"condition": ["Ne", "s0", "s1"], "at": "model.py:3"}],
    }
    description = read_call(content, name="the call")
    _, sizes = checked_leaves(description, (np.ones(6, np.float32), 4), {})
    assert result_of(description, ["y"], sizes) == ("y", 8)
    for times, message in (
        (1.5, r"times is 1\.5, but the program was captured with a whole number"),
        (9, "args is 9, outside of times in 1..5"),
        (2, r"n != times does not hold for n = 2, times = 2 \(asked at model\.py:3\)"),
    ):
        with pytest.raises(InputValueError, match=message):
            checked_leaves(description, (np.ones(6, np.float32), times), {})
    with pytest.raises(InputValueError, match=r"shape\[0\] is 7, but it must be 3\*n"):
        checked_leaves(description, (np.ones(7, np.float32), 4), {})
