"""Packages: the original signature, numbers and state come back from the file."""

import copy
import zipfile
from collections import OrderedDict, namedtuple
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from safetensors import safe_open
from torch.utils import _pytree as pytree

import precast
import precast.runtime
from precast.errors import InputTypeError, InputValueError, LoweringError

Pair = namedtuple("Pair", "left right")


@dataclass
class Scores:
    logits: torch.Tensor
    total: torch.Tensor


pytree.register_dataclass(Scores)


def packaged(function, *args, path, kwargs=None, **options):
    return precast.runtime.load(precast.package(function, args, kwargs, path=path, **options))


@pytest.fixture
def path(tmp_path):
    return tmp_path / "model.precast"


def test_calls_have_the_original_signature(normalized_path, normalized):
    model, reference = precast.runtime.load(normalized_path), copy.deepcopy(normalized)
    for rows in (5, 2, 64):
        x, scale = torch.randn(rows, 4), torch.tensor(0.5)
        result, expected = model({"x": x}, scale=scale), reference({"x": x}, scale=scale)
        assert result["rows"] == rows
        torch.testing.assert_close(result["y"], expected["y"])


def test_arguments_may_be_given_by_name_in_any_order(normalized_path):
    model = precast.runtime.load(normalized_path)
    x, scale = torch.randn(3, 4), torch.tensor(1.5)
    first = model(scale=scale, inputs={"x": x})
    assert torch.equal(first["y"], precast.runtime.load(normalized_path)({"x": x}, scale)["y"])


def test_buffers_are_updated_in_the_models_state(normalized_path, normalized):
    model, reference = precast.runtime.load(normalized_path), copy.deepcopy(normalized)
    for _ in range(3):
        x = torch.randn(6, 4)
        model({"x": x}, scale=torch.tensor(1.0))
        reference({"x": x}, scale=torch.tensor(1.0))
    assert model.state["layers.1.num_batches_tracked"] == 3
    torch.testing.assert_close(torch.as_tensor(model.state["layers.1.running_mean"]), reference.layers[1].running_mean)
    assert precast.runtime.load(normalized_path).state["layers.1.num_batches_tracked"] == 0


def test_the_file_is_a_zip_of_known_members(normalized_path):
    with zipfile.ZipFile(normalized_path) as archive:
        assert archive.testzip() is None
        assert archive.namelist() == [
            "manifest.json",
            "program.json",
            "example_inputs.safetensors",
            "samples.safetensors",
            "native/native/model.so",
            "native/x86-64-v3/model.so",
            "weights.safetensors",
        ]


def test_other_tools_read_the_weights(normalized_path, normalized, tmp_path):
    with zipfile.ZipFile(normalized_path) as archive:
        archive.extract("weights.safetensors", tmp_path)
    with safe_open(tmp_path / "weights.safetensors", framework="pt") as weights:
        assert torch.equal(weights.get_tensor("layers.0.weight"), normalized.layers[0].weight)


def test_the_program_in_a_package_can_be_loaded_and_packaged_again(normalized_path, path):
    exported = precast.load(normalized_path)
    again = precast.runtime.load(precast.package(exported, path=path))
    x, scale = torch.randn(3, 4), torch.tensor(1.5)
    original = precast.runtime.load(normalized_path)
    assert torch.equal(again({"x": x}, scale=scale)["y"], original({"x": x}, scale=scale)["y"])


def test_the_same_arguments_give_the_same_bytes(tmp_path):
    module, x = torch.nn.Linear(3, 2), torch.randn(4, 3)
    paths = [precast.package(module, (x,), path=tmp_path / f"{n}.precast", targets=["x86-64-v3"]) for n in range(2)]
    assert paths[0].read_bytes() == paths[1].read_bytes()


def test_trees_come_back_as_they_were(path):
    def function(pair, mapping):
        return OrderedDict(sums=[pair.left + mapping["b"], (pair.right,)], pair=Pair(pair.right, None), text="done")

    x, y, z = (torch.randn(2) for _ in range(3))
    model = packaged(function, Pair(x, y), {"a": 3, "b": z}, path=path)
    result = model(Pair(x, y), {"b": z, "a": 3})
    assert type(result) is OrderedDict
    assert torch.equal(result["sums"][0], x + z)
    assert torch.equal(result["sums"][1][0], y)
    assert torch.equal(result["pair"].left, y)
    assert type(result["pair"]) is Pair
    # A caller that has not the class passes a mapping.
    assert model({"right": y, "left": x}, {"b": z, "a": 3})["text"] == "done"
    assert (result["pair"].right, result["text"]) == (None, "done")


def test_registered_classes_come_back_where_they_are_known(path):
    model = packaged(lambda x: Scores(x * 2, x.sum()), torch.ones(3), path=path)
    result = model(torch.ones(3))
    assert type(result) is Scores
    assert result.total == 3


def test_numpy_gives_numpy_and_torch_gives_torch(path):
    model = packaged(lambda x: x + 1, torch.ones(3), path=path)
    assert isinstance(model(np.ones(3, np.float32)), np.ndarray)
    assert isinstance(model(torch.ones(3)), torch.Tensor)


def test_inputs_are_read_where_they_lie_in_any_layout(path):
    x = torch.randn(4, 6)
    model = packaged(lambda x: x.cumsum(0), x, path=path)
    torch.testing.assert_close(model(x.t().contiguous().t()), x.cumsum(0))
    np.testing.assert_allclose(model(np.asfortranarray(x.numpy())), x.cumsum(0), rtol=1e-6)


def test_arguments_that_the_program_writes_to_are_written_to(path):
    def function(x, y):
        x.mul_(2)
        return x + y

    model = packaged(function, torch.ones(3), torch.ones(3), path=path)
    tensor, array = torch.ones(3), np.ones(3, np.float32)
    assert model(tensor, torch.ones(3)).tolist() == [3, 3, 3]
    assert tensor.tolist() == [2, 2, 2]
    model(array, np.ones(3, np.float32))
    assert array.tolist() == [2, 2, 2]
    array.flags.writeable = False
    with pytest.raises(InputValueError, match=r"x cannot be written to"):
        model(array, np.ones(3, np.float32))


def test_dimensions_that_are_multiples_of_a_size(path):
    half = precast.Dim("half", min=1, max=32)
    shapes = {"x": {0: 2 * half}, "y": {0: half + 1}}
    model = packaged(lambda x, y: x.view(2, -1).sum(0) + y[1:], torch.ones(6), torch.ones(4), path=path,
                     dynamic_shapes=shapes)  # fmt: skip
    for size in (3, 1, 20):
        x, y = torch.randn(2 * size), torch.randn(size + 1)
        torch.testing.assert_close(model(x, y), x.view(2, -1).sum(0) + y[1:])
    with pytest.raises(InputValueError, match=r"x\.shape\[0\] is 5"):
        model(torch.ones(5), torch.ones(3))


def test_tied_and_strided_weights(path):
    class Tied(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first = torch.nn.Linear(3, 3, bias=False)
            self.second = torch.nn.Linear(3, 3, bias=False)
            self.second.weight = self.first.weight
            self.register_buffer("turned", torch.randn(4, 3).t())

        def forward(self, x):
            return self.second(self.first(x)) @ self.turned

    module, x = Tied(), torch.randn(2, 3)
    model = packaged(module, x, path=path)
    torch.testing.assert_close(model(x), module(x))
    assert len(model.state) == 2


def test_half_precision(path):
    module, x = torch.nn.Linear(8, 8).to(torch.bfloat16), torch.randn(2, 8)
    model = packaged(lambda x: module(x.bfloat16()).float(), x, path=path)
    torch.testing.assert_close(model(x), module(x.bfloat16()).float(), rtol=2e-2, atol=2e-2)
    assert model.verify()[0].passed
    array = next(value for value in (model.state[name] for name in model.state) if value.ndim == 2)
    assert array.dtype == np.uint16


def test_every_operator_that_needs_torch_is_listed_with_its_line(path):
    def function(x):
        factors = torch.linalg.eig(x)
        return factors.eigenvalues.real, torch.linalg.eigvals(x).real

    with pytest.raises(LoweringError) as caught:
        precast.package(function, (torch.eye(3),), path=path)
    for word in ("linalg_eig", "eigvals", "factors = torch.linalg.eig(x)", "test_package.py"):
        assert word in str(caught.value)
    assert not path.exists()


def test_what_is_no_program_is_refused(path):
    with pytest.raises(InputTypeError, match="'forward' is of type int"):
        precast.package(3, path=path)
    with pytest.raises(InputValueError, match="nothing to package"):
        precast.package({}, path=path)
    with pytest.raises(InputValueError, match="cannot name an entry"):
        precast.package({"../evil": torch.nn.ReLU()}, (torch.ones(1),), path=path)


def test_updated_state_must_not_share_memory(path):
    class Sharing(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("whole", torch.zeros(4))
            self.register_buffer("part", self.whole[:2])

        def forward(self, x):
            self.part.add_(1)
            return self.whole + x

    with pytest.raises((InputValueError, precast.PrecastError)):
        precast.package(Sharing(), (torch.ones(4),), path=path)


def test_what_is_assumed_about_sizes_is_checked_by_native_code_too(path):
    def function(x):
        return x[:4].sum() + x.view(2, -1).sum(0).max()

    model = packaged(function, torch.ones(8), path=path, dynamic_shapes={"x": {0: precast.Dim.AUTO}})
    x = torch.randn(10)
    torch.testing.assert_close(model(x), function(x))
    for size, message in ((5, r"% 2.* does not hold for"), (2, r"is 2, outside of .* in 4")):
        with pytest.raises(InputValueError, match=message):
            model(torch.ones(size))
    native = model["forward"].runnable
    with pytest.raises(ValueError, match="the size 2 is not one that the entry was compiled for"):
        native(torch.ones(2))


def test_recurrent_layers_of_a_fixed_length(path):
    module, x = torch.nn.LSTM(3, 5), torch.randn(4, 2, 3)
    (result, _), (expected, _) = packaged(module, x, path=path)(x), module(x)
    torch.testing.assert_close(result, expected)


def test_recurrent_layers_over_any_length(path):
    module = torch.nn.LSTM(3, 5)
    sizes = ({0: precast.Dim("length", min=2, max=9)},)
    model = packaged(module, torch.randn(4, 2, 3), path=path, dynamic_shapes=sizes)
    x = torch.randn(7, 2, 3)
    torch.testing.assert_close(model(x)[0], module(x)[0])


def test_a_refusal_names_the_line_inside_a_region_without_gradients(path):
    def function(x):
        with torch.no_grad():
            y = x * 2
            values = torch.linalg.eigvals(y).real
        return values + x.sum()

    with pytest.raises(LoweringError, match=r"values = torch.linalg.eigvals\(y\)"):
        precast.package(function, (torch.randn(3, 3),), path=path)
