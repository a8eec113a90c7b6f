"""A file without its native code: torch interprets the program, and nothing of the code is touched."""

import io
from pathlib import Path

import numpy as np
import pytest
import torch

import precast
import precast.runtime
from precast.artifact.archive import write_archive
from precast.artifact.manifest import FORMAT_VERSION, GPU_VERSION
from precast.artifact.package import open_package
from precast.errors import InputValueError

STORED = sorted((Path(__file__).parent / "stored").glob("*.precast"))


@pytest.fixture(scope="module")
def model(normalized_path):
    return precast.runtime.load(normalized_path, allow_native=False)


def test_it_gives_the_numbers_of_native_code(normalized_path):
    native = precast.runtime.load(normalized_path)
    interpreted = precast.runtime.load(normalized_path, allow_native=False)
    assert interpreted.target is None
    for rows in (5, 7):
        x, scale = torch.randn(rows, 4), torch.tensor(2.0)
        results = [each({"x": x}, scale=scale)["y"] for each in (native, interpreted)]
        torch.testing.assert_close(*results)
    for name in native.state:
        np.testing.assert_allclose(native.state[name], interpreted.state[name], rtol=1e-5, atol=1e-6)


def test_calls_are_checked_all_the_same(model):
    with pytest.raises(InputValueError, match=r"\['x'\]\.shape\[0\] is 1, outside of batch in 2\.\.64"):
        model({"x": torch.randn(1, 4)}, scale=torch.tensor(1.0))


def test_numpy_gives_numpy(model):
    result = model({"x": np.ones((3, 4), np.float32)}, scale=np.float32(1.0))
    assert isinstance(result["y"], np.ndarray)


def test_the_code_may_be_anything(normalized_path, tmp_path):
    content = {name: bytes(data) for name, data in open_package(normalized_path).members.items()}
    content["native/native/model.so"] = b"\x7fELF this must never be loaded"
    write_archive(tmp_path / "changed.precast", content)
    model = precast.runtime.load(tmp_path / "changed.precast", allow_native=False)
    assert model({"x": torch.ones(3, 4)}, scale=torch.tensor(1.0))["rows"] == 3


def test_from_bytes_and_open_files(normalized_path):
    data = normalized_path.read_bytes()
    for source in (data, io.BytesIO(data)):
        model = precast.runtime.load(source, allow_native=False)
        assert model({"x": torch.ones(2, 4)}, scale=torch.tensor(1.0))["rows"] == 2


def test_state_is_written_and_checked(normalized_path):
    model = precast.runtime.load(normalized_path, allow_native=False)
    model.state["layers.3.bias"] = np.full(3, 7, np.float32)
    assert model.state["layers.3.bias"].tolist() == [7, 7, 7]
    with pytest.raises(ValueError, match=r"layers\.3\.bias"):
        model.state["layers.3.bias"] = np.zeros(4, np.float32)
    assert precast.runtime.load(normalized_path).state["layers.3.bias"].tolist() != [7, 7, 7]


def test_samples_are_verified(model):
    assert all(check.passed for check in model.verify())


def test_state_that_native_code_does_not_know_is_left_to_torch(tmp_path):
    class WithUnsigned(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("counts", torch.ones(2).to(torch.uint32))
            self.register_buffer("scale", torch.tensor(3.0))

        def forward(self, x):
            return x * self.scale

    path = precast.package(WithUnsigned(), (torch.ones(2),), path=tmp_path / "m.precast")
    for allow_native in (True, False):
        model = precast.runtime.load(path, allow_native=allow_native)
        assert list(model.state) == ["scale"]
        assert model(torch.ones(2)).tolist() == [3, 3]
    assert precast.load(path).state_dict["counts"].dtype is torch.uint32


@pytest.mark.parametrize("version", [FORMAT_VERSION, GPU_VERSION])
def test_the_versions_that_are_written_are_stored(version):
    assert f"package-{version}" in [path.stem for path in STORED]


@pytest.mark.parametrize("path", STORED, ids=lambda path: path.stem)
def test_files_of_every_version_still_load(path):
    model = precast.runtime.load(path, allow_native=False)
    assert all(check.passed for check in model.verify())
    assert model({"x": torch.ones(3, 4)}, scale=torch.tensor(1.0))["rows"] == 3
    with pytest.raises(precast.errors.ArtifactError, match=r"no native code|no code for"):
        precast.runtime.load(path, device="cpu")
