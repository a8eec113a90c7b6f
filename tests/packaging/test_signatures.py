"""Signatures: who made a file, checked before any of its code is loaded."""

import builtins
import json
import os
from pathlib import Path

import pytest
import torch
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

import precast
import precast.runtime
from precast.artifact.archive import write_archive
from precast.artifact.package import open_package
from precast.errors import ArtifactError, InputTypeError, InputValueError, SignatureError, ToolMissingError
from precast.runtime import load as load_model

KEY, OTHER = (Ed25519PrivateKey.from_private_bytes(bytes([number]) * 32) for number in (1, 2))


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    target = tmp_path_factory.mktemp("signed") / "model.precast"
    return precast.package(torch.nn.Linear(2, 2), (torch.ones(1, 2),), path=target, sign=KEY)


@pytest.fixture
def pem(tmp_path):
    (tmp_path / "private.pem").write_bytes(KEY.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    public = KEY.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    (tmp_path / "public.pem").write_bytes(public)
    return tmp_path


def test_the_right_key_opens(path):
    assert precast.runtime.load(path, require_signature=KEY.public_key()).entries == ("forward",)


def test_keys_may_be_files_texts_or_bytes(path, pem):
    signed = precast.package(torch.nn.ReLU(), (torch.ones(1),), path=pem / "m.precast", sign=pem / "private.pem")
    for key in (pem / "public.pem", (pem / "public.pem").read_bytes(), KEY.public_key().public_bytes_raw()):
        assert precast.runtime.load(signed, require_signature=key)
        assert precast.runtime.load(path, require_signature=[OTHER.public_key(), key])


def test_bytes_take_the_signature_beside_them(path):
    signature = path.with_name("model.precast.sig").read_bytes()
    assert precast.runtime.load(path.read_bytes(), require_signature=KEY.public_key(), signature=signature)
    with pytest.raises(SignatureError, match="no signature"):
        precast.runtime.load(path.read_bytes(), require_signature=KEY.public_key())


def test_another_key_is_refused_before_code_is_loaded(path, monkeypatch):
    monkeypatch.setitem(load_model.__globals__, "_native", lambda *_: pytest.fail("code was loaded"))
    with pytest.raises(SignatureError, match="not one of the trusted keys"):
        precast.runtime.load(path, require_signature=OTHER.public_key())


def copied(path, folder, **members):
    content = {name: bytes(data) for name, data in open_package(path).members.items()}
    write_archive(folder / "model.precast", {**content, **members})
    (folder / "model.precast.sig").write_bytes(path.with_name("model.precast.sig").read_bytes())
    return folder / "model.precast"


def test_a_changed_manifest_is_refused(path, tmp_path):
    manifest = json.loads(bytes(open_package(path).members["manifest.json"]))
    manifest["made_with"]["precast"] = "0.0.0"
    changed = copied(path, tmp_path, **{"manifest.json": json.dumps(manifest).encode()})
    assert precast.runtime.load(changed)
    with pytest.raises(SignatureError, match="not one of this file"):
        precast.runtime.load(changed, require_signature=KEY.public_key())


def test_changed_weights_are_refused_at_once(path, tmp_path):
    weights = bytearray(open_package(path).members["weights.safetensors"])
    weights[-1] ^= 1
    changed = copied(path, tmp_path, **{"weights.safetensors": bytes(weights)})
    with pytest.raises(ArtifactError, match="SHA-256"):
        precast.runtime.load(changed, require_signature=KEY.public_key())


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{}",
        b"[" * 10_000,
        b"x" * 200_000,
        b'{"format": "precast-signature-1", "public_key": "", "signature": ""}',
    ],
)
def test_broken_signatures_are_refused(path, text):
    with pytest.raises(ArtifactError):
        precast.runtime.load(path, require_signature=KEY.public_key(), signature=text)


def test_a_signature_that_claims_another_key_is_refused(path):
    content = json.loads(path.with_name("model.precast.sig").read_bytes())
    content["public_key"] = OTHER.public_key().public_bytes_raw().hex()
    text = json.dumps(content).encode()
    with pytest.raises(SignatureError, match="not one of this file"):
        precast.runtime.load(path, require_signature=OTHER.public_key(), signature=text)


def test_packaging_again_without_a_key_removes_the_old_signature(tmp_path):
    for sign, exists in ((KEY, True), (None, False)):
        precast.package(torch.nn.ReLU(), (torch.ones(1),), path=tmp_path / "m.precast", sign=sign)
        assert (tmp_path / "m.precast.sig").exists() is exists


def test_what_is_no_key_is_refused_before_anything_is_written(path, tmp_path):
    elliptic = generate_private_key(SECP256R1())
    for key in (3, b"not a key", elliptic, KEY.public_key()):
        with pytest.raises(InputTypeError, match="key"):
            precast.package(torch.nn.ReLU(), (torch.ones(1),), path=tmp_path / "m.precast", sign=key)
    assert list(tmp_path.iterdir()) == []
    for key in (3, b"not a key", elliptic.public_key(), KEY):
        with pytest.raises(InputTypeError, match="key"):
            precast.runtime.load(path, require_signature=key)


def test_a_key_that_is_not_there_is_named(path, tmp_path):
    with pytest.raises(InputValueError, match=r"nowhere\.pem cannot be read"):
        precast.runtime.load(path, require_signature=tmp_path / "nowhere.pem")


def test_without_cryptography_nothing_is_taken_for_signed(path, monkeypatch):
    real = builtins.__import__

    def without(name, *args, **kwargs):
        if name.startswith("cryptography"):
            raise ImportError(name)
        return real(name, *args, **kwargs)

    key = KEY.public_key().public_bytes_raw()
    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ToolMissingError, match="need the package 'cryptography'"):
        precast.runtime.load(path, require_signature=key)


def test_a_signature_is_written_with_its_file_or_not_at_all(tmp_path):
    path = tmp_path / "model.precast"
    (tmp_path / "model.precast.sig").mkdir()
    with pytest.raises(OSError, match=r"model\.precast\.sig"):
        precast.package(torch.nn.ReLU(), (torch.ones(1),), path=path, sign=KEY)
    assert [each.name for each in tmp_path.iterdir()] == ["model.precast.sig"]


def test_a_file_whose_weights_were_checked_may_be_overwritten(path, tmp_path):
    copy = tmp_path / "model.precast"
    copy.write_bytes(path.read_bytes())
    model = precast.runtime.load(copy, require_signature=KEY.public_key(), signature=Path(f"{path}.sig").read_bytes())
    x = torch.randn(1, 2)
    before = model(x)
    copy.write_bytes(bytes(copy.stat().st_size))
    torch.testing.assert_close(model(x), before, rtol=0, atol=0)
    os.truncate(copy, 0)
    torch.testing.assert_close(model(x), before, rtol=0, atol=0)
    copy.write_bytes(path.read_bytes())
    for options in ({"check_weights": True}, {"copy": True}, {"copy": True, "allow_native": False}):
        model = precast.runtime.load(copy, **options)
        os.truncate(copy, 0)
        torch.testing.assert_close(model(x), before)
        copy.write_bytes(path.read_bytes())
