"""Metadata of inputs, and random inputs made from it."""

import json

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from precast.compilers import get_inputs
from precast.debug.input_metadata import write_input_metadata
from precast.errors import InputTypeError, InputValueError


def saved(tmp_path, *inputs):
    path = tmp_path / "inputs.json"
    write_input_metadata(path, [f"input_{index}" for index in range(len(inputs))], inputs)
    return path


@pytest.mark.parametrize(
    "dtype",
    [
        torch.float32,
        torch.bfloat16,
        torch.float8_e5m2,
        torch.int64,
        torch.int8,
        torch.uint8,
        torch.uint16,
        torch.bool,
        torch.complex64,
    ],
)
def test_random_tensor_fits(tmp_path, dtype):
    like = torch.zeros(4, 5).to(dtype).t()
    (made,) = get_inputs(saved(tmp_path, like))
    assert (made.shape, made.stride(), made.dtype, made.device) == (like.shape, like.stride(), dtype, like.device)
    if not (dtype.is_floating_point or dtype.is_complex):
        assert len(made.to(torch.int64).unique()) > 1


def test_booleans_are_mixed(tmp_path):
    (made,) = get_inputs(saved(tmp_path, torch.zeros(2, dtype=torch.bool)))
    assert sorted(made.tolist()) == [False, True]


def test_python_numbers_are_told_by_type_alone(tmp_path):
    path = saved(tmp_path, 3, 2.5, True, None)
    assert [list(entry) for entry in json.loads(path.read_text())["inputs"]] == [["name", "type"]] * 4
    assert [type(value) for value in get_inputs(path)] == [int, float, bool, type(None)]


def test_symbolic_sizes_are_told_with_the_sizes_seen(tmp_path):
    fake = FakeTensorMode(shape_env=ShapeEnv()).from_tensor(torch.ones(6, 3), static_shapes=False)
    rows = fake.shape[0]
    path = saved(tmp_path, rows, fake, rows * 2)
    assert json.loads(path.read_text())["inputs"][1]["symbolic_shape"][0] == str(rows)
    size, tensor, twice = get_inputs(path)
    assert (size, tuple(tensor.shape), twice) == (6, (6, 3), 12)


def test_expanded_and_overlapping_inputs_fit(tmp_path):
    expanded, windows = torch.ones(3).expand(2, 3), torch.ones(4).as_strided((3, 2), (1, 1))
    first, second = get_inputs(saved(tmp_path, expanded, windows))
    assert first.stride() == (0, 1)
    assert second.shape == (3, 2)


def test_folder_stands_for_its_metadata_file(tmp_path):
    saved(tmp_path, torch.ones(2))
    assert get_inputs(tmp_path)[0].shape == (2,)


@pytest.mark.parametrize("text", ["not json", "[]", "{}"])
def test_another_file_is_refused(tmp_path, text):
    path = tmp_path / "inputs.json"
    path.write_text(text)
    with pytest.raises(InputValueError, match="is not a metadata file of inputs"):
        get_inputs(path)


def test_input_of_another_type_is_refused(tmp_path):
    with pytest.raises(InputTypeError, match="of type str cannot be described"):
        saved(tmp_path, "text")
