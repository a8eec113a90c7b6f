"""Native code for several processors in one file, and the choice between them."""

import pytest
import torch

import precast
import precast.runtime
from precast.artifact.manifest import Target
from precast.errors import ArtifactError, InputValueError
from precast.runtime import load as load_model
from precast.runtime.processor import LEVELS, choose_target, features_of_this_machine, processor_features

V3, V4 = (Target(name, "f", ("x86_64", *features)) for name, features in LEVELS.items())
NEWER = Target("native", "f", (*V4.features, "avx512_bf16"))


@pytest.mark.parametrize(
    ("features", "expected"),
    [(V3.features, V3), (V4.features, V4), (NEWER.features, NEWER), ((*V3.features, "avx512f"), V3)],
)
def test_the_best_that_the_processor_can_run(features, expected):
    assert choose_target([V3, NEWER, V4], features) == expected


def test_a_processor_without_the_features_is_refused_with_what_is_missing():
    with pytest.raises(ArtifactError, match=r"(?s)x86-64-v4 needs avx512bw.*older target") as caught:
        choose_target([V4], V3.features)
    assert "x86-64-v3 needs" not in str(caught.value)
    with pytest.raises(ArtifactError, match="x86-64-v3 needs abm, avx, avx2"):
        choose_target([V3, V4], ("x86_64",))


def test_a_target_that_is_not_there_is_named():
    with pytest.raises(ArtifactError, match="no code for the target 'x86-64-v4'"):
        choose_target([V3], V4.features, wanted="x86-64-v4")
    with pytest.raises(ArtifactError, match="no native code"):
        choose_target([], V4.features)


def test_this_machine_runs_what_is_made_for_it():
    assert set(features_of_this_machine()) <= processor_features()


def test_the_older_variant_gives_the_same_numbers(normalized_path):
    native = precast.runtime.load(normalized_path, target="native")
    older = precast.runtime.load(normalized_path, target="x86-64-v3")
    assert (native.target, older.target) == ("native", "x86-64-v3")
    x, scale = torch.randn(9, 4), torch.tensor(1.0)
    torch.testing.assert_close(native({"x": x}, scale=scale)["y"], older({"x": x}, scale=scale)["y"])


def test_a_machine_without_avx512_takes_the_older_variant(normalized_path, monkeypatch):
    monkeypatch.setitem(load_model.__globals__, "processor_features", lambda: frozenset(V3.features))
    assert precast.runtime.load(normalized_path).target == "x86-64-v3"


def test_a_machine_that_no_variant_suits_refuses_before_loading_code(normalized_path, monkeypatch):
    monkeypatch.setitem(load_model.__globals__, "processor_features", lambda: frozenset({"x86_64"}))
    monkeypatch.setitem(load_model.__globals__, "load_library_bytes", lambda *_, **__: pytest.fail("code was loaded"))
    with pytest.raises(ArtifactError, match="can run on this processor"):
        precast.runtime.load(normalized_path)


@pytest.mark.parametrize("targets", ["native", (), ("sparc",), ("native", "x86-64-v5")])
def test_unknown_targets_are_refused(targets, tmp_path):
    with pytest.raises(InputValueError, match="target"):
        precast.package(torch.nn.ReLU(), (torch.ones(1),), path=tmp_path / "m.precast", targets=targets)
