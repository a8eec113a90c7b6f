"""Samples: what a package must compute, and `verify`, which tries it."""

import json

import numpy as np
import pytest
import torch

import precast
import precast.runtime
from precast.artifact.archive import write_archive
from precast.artifact.package import MANIFEST, SAMPLES, file_record, open_package
from precast.artifact.weights import Weight, read_weights, weight_pieces
from precast.errors import ArtifactError, InputTypeError, InputValueError
from precast.runtime.verification import largest_error


def changed_manifest(members, **changes):
    """The manifest of these members, with right hashes and some keys changed."""
    manifest = json.loads(members[MANIFEST]) | changes
    manifest["files"] = {name: file_record(data)._asdict() for name, data in members.items() if name != MANIFEST}
    return json.dumps(manifest, indent=1).encode()


def rehashed(path, target, **changes):
    """The same file with some members changed, and the manifest's hashes with them."""
    content = {name: bytes(data) for name, data in open_package(path).members.items()}
    names = {"samples": SAMPLES, "weights": "weights.safetensors"}
    for key, change in changes.items():
        content[names[key]] = change(content[names[key]])
    write_archive(target, {**content, MANIFEST: changed_manifest(content)})
    return target


def test_verify_tells_what_was_compared(normalized_path):
    (check,) = precast.runtime.load(normalized_path).verify()
    assert (check.entry, check.sample, check.passed) == ("forward", 0, True)
    assert 0 < check.tolerance < 1e-4


def test_verify_does_not_touch_the_models_state(normalized_path):
    model = precast.runtime.load(normalized_path)
    model.verify()
    model({"x": torch.ones(2, 4)}, scale=torch.tensor(1.0))
    assert model.verify()[0].passed
    assert model.state["layers.1.num_batches_tracked"] == 1


def test_numbers_that_are_off_are_found(normalized_path, tmp_path):
    def shifted(data):
        tensors = read_weights(memoryview(data))
        name = next(name for name in tensors if "output" in name)
        changed = {**tensors, name: Weight("f32", tensors[name].carrier + np.float32(1e-3))}
        return b"".join(weight_pieces(changed))

    path = rehashed(normalized_path, tmp_path / "m.precast", samples=shifted)
    with pytest.raises(ArtifactError, match=r"forward, sample 0, .*: off by 0\.001"):
        precast.runtime.load(path).verify()


def test_changed_weights_are_found_by_verify_and_on_demand(normalized_path, tmp_path):
    content = {name: bytes(data) for name, data in open_package(normalized_path).members.items()}
    weights = bytearray(content["weights.safetensors"])
    weights[-20] ^= 1
    write_archive(tmp_path / "m.precast", {**content, "weights.safetensors": bytes(weights)})
    with pytest.raises(ArtifactError, match="SHA-256"):
        precast.runtime.load(tmp_path / "m.precast").verify()
    with pytest.raises(ArtifactError, match="SHA-256"):
        precast.runtime.load(tmp_path / "m.precast", check_weights=True)


def test_samples_of_ones_own(tmp_path):
    calls = [((torch.randn(3),), {}), ((torch.randn(3),), {})]
    path = precast.package(torch.nn.Tanh(), (torch.ones(3),), path=tmp_path / "m.precast", samples=calls)
    assert [check.sample for check in precast.runtime.load(path).verify()] == [0, 1]


def test_without_samples_no_example_is_in_the_file(tmp_path):
    secret = torch.full((64,), 1234.5)
    path = precast.package(torch.nn.Tanh(), (secret,), path=tmp_path / "m.precast", samples=False)
    assert secret.numpy().tobytes() not in path.read_bytes()
    assert precast.runtime.load(path).verify() == ()


def test_strange_samples_are_refused(tmp_path):
    with pytest.raises(InputTypeError, match="samples cannot be str"):
        precast.package(torch.nn.Tanh(), (torch.ones(3),), path=tmp_path / "m.precast", samples="all")


def test_in_process_there_is_nothing_to_verify(tmp_path):
    path = precast.aot_compile(torch.tanh, (torch.ones(3),), options={"output_path": tmp_path / "t.so"})
    with pytest.raises(InputValueError, match="nothing to verify"):
        precast.aot_load(path, "cpu").verify()


@pytest.mark.parametrize(
    ("ours", "theirs", "error"),
    [
        ([1.0, 2.0], [1.0, 2.0], 0.0),
        ([1.0, 2.0], [1.0, 2.5], 0.5),
        ([np.nan, np.inf], [np.nan, np.inf], 0.0),
        ([np.nan], [1.0], np.inf),
        ([np.inf], [-np.inf], np.inf),
        ([1.0], [[1.0]], np.inf),
        ([], [], 0.0),
    ],
)
def test_the_largest_error(ours, theirs, error):
    weights = [Weight("f32", np.array(each, np.float32)) for each in (ours, theirs)]
    assert largest_error(*weights) == error


def test_bfloat16_is_compared_by_its_values():
    ours, theirs = (Weight("bf16", np.array([bits], np.uint16)) for bits in (0x3F80, 0x4000))
    assert largest_error(ours, theirs) == 1.0


def test_regions_without_gradients_are_sampled_in_double_precision_too(tmp_path):
    def function(x):
        with torch.no_grad():
            weights = torch.arange(3).float() @ x.tanh()
        return weights * x

    path = precast.package(function, (torch.randn(3, 3),), path=tmp_path / "model.precast")
    assert all(check.passed for check in precast.runtime.load(path).verify())


def test_the_limits_of_double_precision_are_not_expected_of_floats(tmp_path):
    class Bounded(torch.nn.Module):
        def forward(self, x):
            return torch.nan_to_num(torch.log(x))

    precast.package(Bounded(), (torch.tensor([0.0, 1.0, torch.inf]),), path=tmp_path / "bounded.precast")
    precast.runtime.load(tmp_path / "bounded.precast").verify()


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int8, torch.uint8], ids=str)
def test_shifts_of_whole_numbers(tmp_path, dtype):
    class Shifts(torch.nn.Module):
        def forward(self, x):
            return x << 3, x >> 1, 1 << x, x << x, x >> x, x << 9, x >> 9

    x = torch.tensor([0, 1, 3, 5, 100]).to(dtype)
    precast.package(Shifts(), (x,), path=tmp_path / "shifts.precast", samples=False)
    torch.testing.assert_close(precast.runtime.load(tmp_path / "shifts.precast")(x), Shifts()(x))
