"""The tensor file keeps values, dtypes, sizes and strides."""

import pytest
import torch
from safetensors.torch import load_file

from precast.debug.tensor_file import overlaps, read_tensors, write_tensors
from precast.errors import InputValueError

DTYPES = [
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.float8_e4m3fn,
    torch.float8_e4m3fnuz,
    torch.int64,
    torch.int8,
    torch.uint8,
    torch.uint16,
    torch.bool,
    torch.complex64,
    torch.complex128,
]


def roundtrip(path, **tensors):
    write_tensors(path / "tensors.safetensors", tensors)
    return read_tensors(path / "tensors.safetensors")


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_comes_back(tmp_path, dtype):
    tensor = (torch.rand(3, 2) * 4).to(dtype)
    result = roundtrip(tmp_path, other=torch.ones(3, dtype=torch.bool), tensor=tensor)["tensor"]
    assert result.dtype == dtype
    assert torch.equal(result.view(torch.uint8), tensor.view(torch.uint8))


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(6.0).view(2, 3).t(),
        torch.arange(3.0).expand(2, 3),
        torch.arange(12.0)[::2],
        torch.tensor(3.0),
        torch.empty(0, 3),
        torch.ones(1).expand(4, 1),
    ],
)
def test_values_and_strides_come_back(tmp_path, tensor):
    result = roundtrip(tmp_path, tensor=tensor)["tensor"]
    assert torch.equal(result, tensor)
    assert result.stride() == tensor.stride()


def test_overlapping_windows_come_back_as_values(tmp_path):
    windows = torch.arange(4.0).as_strided((3, 2), (1, 1))
    assert torch.equal(roundtrip(tmp_path, tensor=windows)["tensor"], windows)


def test_conjugate_views_come_back_as_values(tmp_path):
    tensor = torch.tensor([1 + 2j]).conj()
    assert torch.equal(roundtrip(tmp_path, tensor=tensor)["tensor"], tensor)


def test_file_is_one_that_safetensors_reads(tmp_path):
    tensors = {"a": torch.randn(3, 2), "b": torch.tensor([True, False])}
    write_tensors(tmp_path / "tensors.safetensors", tensors)
    loaded = load_file(tmp_path / "tensors.safetensors")
    assert all(torch.equal(loaded[name], tensor) for name, tensor in tensors.items())


def test_sparse_tensor_is_refused_by_name(tmp_path):
    with pytest.raises(InputValueError, match=r"'graph' cannot be saved: it is torch\.sparse_coo"):
        roundtrip(tmp_path, graph=torch.eye(2).to_sparse())


def test_overlap_is_told_from_expansion():
    assert not overlaps((2, 3), (0, 1))
    assert not overlaps((2, 3), (3, 1))
    assert overlaps((3, 2), (1, 1))
