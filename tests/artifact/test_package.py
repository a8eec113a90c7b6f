"""Packages: what goes in comes out, and every damage is found before use."""

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load as load_safetensors

from precast.artifact.archive import write_archive
from precast.artifact.manifest import packed_entry, parse_entry, parse_manifest
from precast.artifact.package import MANIFEST, WEIGHTS, NativeCode, native_member, open_package, write_package
from precast.artifact.weights import Weight, read_weights, weight_pieces
from precast.errors import ArtifactError

TENSOR = {"name": "x", "dtype": "f32", "shape": [2, "s0"], "strides": ["s0", 1]}
INTERFACE = {"name": "forward", "inputs": [TENSOR], "weights": [], "outputs": [TENSOR], "updates": [], "sizes": []}
ENTRY = packed_entry(INTERFACE)
MANY_DIMS = TENSOR | {"shape": [1] * 17, "strides": [1] * 17}
WEIGHT_ARRAYS = {
    "layer.weight": Weight("f32", np.arange(6, dtype=np.float32).reshape(2, 3)),
    "flags": Weight("bool", np.array([True, False])),
    "half": Weight("bf16", np.array([0x3F80], dtype=np.uint16)),
    "none": Weight("i64", np.zeros((0, 3), dtype=np.int64)),
    "scalar": Weight("f64", np.array(2.5)),
}


@pytest.fixture
def path(tmp_path):
    return write_package(
        tmp_path / "m.precast",
        entries=[ENTRY],
        code={"native": NativeCode(b"code")},
        weights=WEIGHT_ARRAYS,
        libraries=["libdnnl.so.3"],
    )


def changed(path: Path, **members: bytes | None) -> Path:
    """The same file with some members replaced (or, with None, removed), the rest as it was."""
    content = {name: bytes(data) for name, data in open_package(path).members.items()}
    names = {"manifest": MANIFEST, "weights": WEIGHTS, "code": native_member("native")}
    for key, data in members.items():
        if data is None:
            del content[names[key]]
        else:
            content[names[key]] = data
    write_archive(path, content)
    return path


def manifest_of(path):
    return json.loads(bytes(open_package(path).members[MANIFEST]))


def test_round_trip(path):
    package = open_package(path)
    assert package.manifest.entries[0].interface.outputs[0].shape == (2, "s0")
    assert package.manifest.libraries == ("libdnnl.so.3",)
    assert package.checked(native_member("native")) == b"code"
    weights = package.state()
    assert {name: weight.dtype for name, weight in weights.items()} == {
        name: weight.dtype for name, weight in WEIGHT_ARRAYS.items()
    }
    for name, weight in weights.items():
        np.testing.assert_array_equal(weight.carrier, WEIGHT_ARRAYS[name].carrier)
    package.verify()


def test_weights_are_mapped_not_copied(path):
    weight = open_package(path).state()["layer.weight"].carrier
    assert not weight.flags.owndata
    assert not weight.flags.writeable


def test_the_same_content_gives_the_same_bytes(path, tmp_path):
    again = write_package(
        tmp_path / "n.precast",
        entries=[ENTRY],
        code={"native": NativeCode(b"code")},
        weights=WEIGHT_ARRAYS,
        libraries=["libdnnl.so.3"],
    )
    assert path.read_bytes() == again.read_bytes()


def test_the_safetensors_library_reads_our_weights():
    loaded = load_safetensors(
        b"".join(weight_pieces({"w": WEIGHT_ARRAYS["layer.weight"], "s": WEIGHT_ARRAYS["scalar"]}))
    )
    np.testing.assert_array_equal(loaded["w"], WEIGHT_ARRAYS["layer.weight"].carrier)
    assert loaded["s"] == 2.5


def test_changed_code_is_not_given_out(path):
    package = open_package(changed(path, code=b"evil"))
    with pytest.raises(ArtifactError, match="SHA-256"):
        package.checked(native_member("native"))


def test_changed_weights_are_found_by_verify(path):
    content = bytearray(open_package(path).members[WEIGHTS])
    content[-1] ^= 1
    with pytest.raises(ArtifactError, match="SHA-256"):
        open_package(changed(path, weights=bytes(content))).verify()


def test_longer_weights_are_found_at_once(path):
    content = bytes(open_package(path).members[WEIGHTS]) + b"more"
    with pytest.raises(ArtifactError, match="the manifest says"):
        open_package(changed(path, weights=content)).state()


def test_missing_members_are_named(path):
    with pytest.raises(ArtifactError, match="no manifest"):
        open_package(changed(path, manifest=None))


def test_missing_code_is_named(path):
    with pytest.raises(ArtifactError, match=r"has no native/native/model\.so"):
        open_package(changed(path, code=None))


def test_members_that_the_manifest_does_not_name_are_refused(path):
    content = {name: bytes(data) for name, data in open_package(path).members.items()}
    write_archive(path, {**content, "extra": b""})
    with pytest.raises(ArtifactError, match="extra"):
        open_package(path)


def test_a_missing_file_is_an_artifact_error(tmp_path):
    with pytest.raises(ArtifactError, match="cannot be read"):
        open_package(tmp_path / "none.precast")


def test_another_version_says_which_one(path):
    manifest = manifest_of(path) | {"version": 99, "news": [1, 2]}
    with pytest.raises(ArtifactError, match="format version 99"):
        open_package(changed(path, manifest=json.dumps(manifest).encode()))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "other"}, "manifest.json.format"),
        ({"entries": 3}, "manifest.json.entries"),
        ({"entries": [ENTRY, ENTRY]}, "two entries"),
        ({"entries": [packed_entry(INTERFACE | {"inputs": [TENSOR | {"dtype": "f8"}]})]}, r"inputs\[0\]\.dtype"),
        ({"entries": [packed_entry(INTERFACE | {"inputs": [TENSOR | {"shape": [-1, 2]}]})]}, r"shape\[0\]"),
        ({"entries": [packed_entry(INTERFACE | {"inputs": [TENSOR | {"shape": [True, 2]}]})]}, r"shape\[0\]"),
        ({"entries": [packed_entry(INTERFACE | {"inputs": [TENSOR | {"strides": [1]}]})]}, "number of strides"),
        (
            {"entries": [packed_entry(INTERFACE | {"inputs": [TENSOR | {"shape": [1] * 17, "strides": [1] * 17}]})]},
            "at most 16",
        ),
        ({"files": {"../evil": {"size": 1, "sha256": "0" * 64}}}, "keys of manifest.json.files"),
        ({"files": {"a": {"size": 1, "sha256": "xyz"}}}, "sha256"),
        ({"files": {"a": {"size": 1.5, "sha256": "0" * 64}}}, "size"),
        ({"more": 1}, "an object with"),
    ],
)
def test_a_manifest_out_of_shape_is_refused_at_the_place(path, change, message):
    manifest = manifest_of(path) | change
    with pytest.raises(ArtifactError, match=message):
        parse_manifest(json.dumps(manifest).encode())


@pytest.mark.parametrize(
    "text", [b"", b"{", b"[" * 100_000, b'{"a": 1, "a": 2}', b'{"a": NaN}', b"\xff\xfe", b"[]", b"null", b'"text"']
)
def test_what_is_no_json_object_is_refused(text):
    with pytest.raises(ArtifactError):
        parse_manifest(text)


def test_an_entry_needs_all_its_parts():
    with pytest.raises(ArtifactError, match="an object with"):
        parse_entry("{}")


def header(**records):
    text = json.dumps(records).encode()
    return len(text).to_bytes(8, "little") + text


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff" * 8,
        (2**62).to_bytes(8, "little") + b"{}",
        header(a={"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}),
        header(a={"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}) + bytes(8),
        header(a={"dtype": "F32", "shape": [2**40, 2**40], "data_offsets": [0, 8]}) + bytes(8),
        header(a={"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}) + bytes(8),
        header(a={"dtype": "F32", "shape": [1], "data_offsets": [0]}) + bytes(8),
        header(a={"dtype": "PICKLE", "shape": [1], "data_offsets": [0, 4]}) + bytes(8),
    ],
)
def test_bad_weights_are_refused_before_anything_is_allocated(data):
    with pytest.raises(ArtifactError):
        read_weights(memoryview(data))
