"""Saved files, loaded and run without torch; damaged ones refused."""

import io
import json
import os
import subprocess
import sys

import numpy as np
import pytest
import torch

import precast.runtime
from precast.artifact.archive import write_archive
from precast.artifact.manifest import packed_entry
from precast.artifact.package import MANIFEST, WEIGHTS, NativeCode, native_member, open_package, write_package
from precast.artifact.weights import Weight
from precast.errors import ArtifactError
from precast.native.describe import describe_entry
from precast.runtime.libraries import preload
from precast.runtime.native import load_library_bytes
from tests.native.lowering.pipeline import build_entries, bullet_inputs, lowered, make_entry, tracer_bullet


def run(model):
    x, _, _, tangent = bullet_inputs()
    return model["forward"](x.numpy(), tangent.numpy())


def assert_right_numbers(outputs):
    for mine, eager in zip(outputs, tracer_bullet(*bullet_inputs()), strict=True):
        np.testing.assert_allclose(mine, eager.numpy(), rtol=1e-5, atol=1e-6)


def test_a_saved_model_runs(bullet_file):
    model = precast.runtime.load(bullet_file)
    assert model.entries == ("forward",)
    assert [each.name for each in model["forward"].description.inputs] == ["arg0_1", "arg3_1"]
    assert_right_numbers(run(model))


def test_from_text_bytes_and_open_files(bullet_file):
    for source in (str(bullet_file), bullet_file.read_bytes(), io.BytesIO(bullet_file.read_bytes())):
        assert_right_numbers(run(precast.runtime.load(source)))


def test_without_torch(bullet_file, tmp_path):
    x, _, _, tangent = bullet_inputs()
    np.savez(tmp_path / "inputs.npz", x.numpy(), tangent.numpy())
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "import numpy, precast.runtime\n"
        "inputs = numpy.load(sys.argv[2])\n"
        "outputs = precast.runtime.load(sys.argv[1])['forward'](inputs['arr_0'], inputs['arr_1'])\n"
        "numpy.savez(sys.argv[3], *outputs)\n"
        "assert not any(name.startswith('torch.') for name in sys.modules)"
    )
    files = [bullet_file, tmp_path / "inputs.npz", tmp_path / "outputs.npz"]
    subprocess.run([sys.executable, "-c", code, *map(str, files)], check=True)
    with np.load(tmp_path / "outputs.npz") as saved:
        assert_right_numbers([saved[name] for name in saved.files])


def test_loaded_models_share_code_but_not_state(bullet_file):
    first = precast.runtime.load(bullet_file)
    descriptors = len(os.listdir("/proc/self/fd"))
    second = precast.runtime.load(bullet_file.read_bytes())
    assert len(os.listdir("/proc/self/fd")) == descriptors
    assert first["forward"].model.library is second["forward"].model.library
    second.state["layer.b"] = np.zeros(6, np.float32)
    assert_right_numbers(run(first))
    assert not np.allclose(run(first)[0], run(second)[0])


def rewritten(bullet_file, tmp_path, **members):
    content = {name: bytes(data) for name, data in open_package(bullet_file).members.items()}
    names = {"manifest": MANIFEST, "weights": WEIGHTS, "code": native_member("native")}
    content |= {names[key]: value for key, value in members.items()}
    write_archive(tmp_path / "changed.precast", content)
    return tmp_path / "changed.precast"


def test_changed_code_is_not_loaded(bullet_file, tmp_path):
    code = bytearray(open_package(bullet_file).members[native_member("native")])
    code[len(code) // 2] ^= 1
    with pytest.raises(ArtifactError, match="SHA-256"):
        precast.runtime.load(rewritten(bullet_file, tmp_path, code=bytes(code)))


def test_a_manifest_that_does_not_fit_the_code_is_refused(bullet_file, tmp_path):
    manifest = json.loads(bytes(open_package(bullet_file).members[MANIFEST]))
    manifest["entries"][0]["interface"]["inputs"][0]["shape"] = [80, 4]
    with pytest.raises(ArtifactError, match="describes other entries"):
        precast.runtime.load(rewritten(bullet_file, tmp_path, manifest=json.dumps(manifest).encode()))


@pytest.mark.parametrize("part", [0.0, 0.1, 0.5, 0.9, 0.999])
def test_cut_files_are_refused(bullet_file, part):
    data = bullet_file.read_bytes()
    with pytest.raises(ArtifactError):
        precast.runtime.load(data[: int(len(data) * part)])


def test_an_empty_file_is_refused(tmp_path):
    (tmp_path / "empty.precast").touch()
    with pytest.raises(ArtifactError):
        precast.runtime.load(tmp_path / "empty.precast")


def test_bytes_that_are_no_library_are_refused():
    with pytest.raises(ArtifactError, match="cannot be loaded"):
        load_library_bytes(b"\x7fELF but not really", name="model.so")


def test_only_known_libraries_may_be_asked_for():
    with pytest.raises(ArtifactError, match="libevil"):
        preload(("libevil.so",))


def test_random_damage_is_found_or_harmless(bullet_file):
    data = bullet_file.read_bytes()
    generator = torch.Generator().manual_seed(0)
    package = open_package(bullet_file)
    code = package.members[native_member("native")]
    for _ in range(200):
        place = int(torch.randint(len(data), (), generator=generator))
        damaged = bytearray(data)
        damaged[place] ^= 1 << int(torch.randint(8, (), generator=generator))
        try:
            opened = open_package(bytes(damaged))
            loaded = opened.checked(native_member("native"))
            opened.state()
        except ArtifactError:
            continue
        assert loaded == bytes(code)


def test_bfloat16_weights_are_mapped_too(build_cache, tmp_path):
    weight = torch.randn(3, 4).to(torch.bfloat16)
    entry = make_entry(lowered(lambda x, w: x + w.float(), torch.zeros(4), weight), {"arg1_1": "w"})
    library = build_entries([entry], build_cache)
    path = write_package(
        tmp_path / "m.precast",
        entries=[packed_entry(describe_entry(entry))],
        code={"native": NativeCode(library.path.read_bytes())},
        weights={"w": Weight("bf16", weight.view(torch.uint16).numpy())},
    )
    (result,) = precast.runtime.load(path)["forward"](np.zeros(4, np.float32))
    np.testing.assert_array_equal(result, weight.float().numpy())
