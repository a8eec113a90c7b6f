"""bfloat16 models called from numpy: arrays of ml_dtypes, or bits, in and out."""

import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest
import torch

import precast
import precast.runtime
from precast.errors import InputValueError


class Model(torch.nn.Module):
    """Takes bfloat16 and whole numbers, and updates one of its arguments."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.table = torch.nn.Embedding(8, 4).bfloat16()
        self.layer = torch.nn.Linear(4, 4).bfloat16()

    def forward(self, ids, x, total):
        result = self.layer(self.table(ids) + x)
        total.add_(1)
        return result


def arguments():
    torch.manual_seed(1)
    return torch.randint(0, 8, (3,)), torch.randn(3, 4).bfloat16(), torch.zeros(2).bfloat16()


def as_numpy(tensor, dtype=ml_dtypes.bfloat16):
    return tensor.view(torch.uint16).numpy().copy().view(dtype)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    with torch.no_grad():
        return precast.package(Model(), arguments(), path=tmp_path_factory.mktemp("bfloat16") / "model.precast")


@pytest.fixture(params=[True, False], ids=["native", "interpreted"])
def model(request, path):
    return precast.runtime.load(path, allow_native=request.param)


def expected():
    with torch.no_grad():
        return Model()(*arguments()).float().numpy()


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.uint16])
def test_results_are_of_the_type_that_is_passed(model, dtype):
    ids, x, total = arguments()
    sums = as_numpy(total, dtype)
    result = model(ids.numpy(), as_numpy(x, dtype), sums)
    assert result.dtype == dtype
    values = result.view(ml_dtypes.bfloat16).astype(np.float32)
    np.testing.assert_allclose(values, expected(), rtol=2e-2, atol=2e-2)
    assert sums.view(ml_dtypes.bfloat16).tolist() == [1, 1]


def test_strides_are_kept(model):
    ids, x, total = arguments()
    turned = as_numpy(x.t().contiguous()).T
    result = model(ids.numpy(), turned, as_numpy(total))
    np.testing.assert_allclose(result.astype(np.float32), expected(), rtol=2e-2, atol=2e-2)


def test_nothing_is_rounded_in_secret(model):
    ids, x, total = arguments()
    with pytest.raises(InputValueError, match="is float32, but the program was captured with bfloat16"):
        model(ids.numpy(), x.float().numpy(), as_numpy(total))


def test_state_is_written_as_either(model):
    ids, x, total = arguments()
    bias = np.full(4, 2, ml_dtypes.bfloat16)
    results = []
    for value in (bias, bias.view(np.uint16)):
        model.state["layer.bias"] = value
        assert model.state["layer.bias"].view(ml_dtypes.bfloat16).tolist() == [2] * 4
        results.append(model(ids.numpy(), as_numpy(x), as_numpy(total)))
    np.testing.assert_array_equal(*results)


def test_without_ml_dtypes_results_are_bits(path):
    code = """
import sys; sys.modules["torch"] = sys.modules["ml_dtypes"] = None
import numpy as np, precast.runtime
model = precast.runtime.load(sys.argv[1])
bits = np.zeros((3, 4), np.uint16)
result = model(np.arange(3), bits, np.zeros(2, np.uint16))
assert result.dtype == np.uint16, result.dtype
"""
    subprocess.run([sys.executable, "-c", code, str(path)], check=True)
