"""The tracer bullet, compiled and packaged once for all tests of this folder."""

from pathlib import Path

import pytest

from precast.artifact.manifest import packed_entry
from precast.artifact.package import NativeCode, write_package
from precast.artifact.weights import Weight
from precast.native.describe import Entry, describe_entry
from precast.native.targets.cpu.build.built import Library
from tests.native.lowering.pipeline import build_entries, bullet_inputs, lowered, make_entry, tracer_bullet

WEIGHTS = {"arg1_1": "layer.w", "arg2_1": "layer.b"}


@pytest.fixture(scope="session")
def build_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("build-cache")


@pytest.fixture(scope="session")
def bullet_entry() -> Entry:
    return make_entry(lowered(tracer_bullet, *bullet_inputs()), WEIGHTS)


@pytest.fixture(scope="session")
def bullet_library(bullet_entry, build_cache) -> Library:
    return build_entries([bullet_entry], build_cache)


@pytest.fixture(scope="session")
def bullet_file(bullet_entry, bullet_library, tmp_path_factory) -> Path:
    _, w, b, _ = bullet_inputs()
    return write_package(
        tmp_path_factory.mktemp("package") / "bullet.precast",
        entries=[packed_entry(describe_entry(bullet_entry))],
        code={"native": NativeCode(bullet_library.path.read_bytes())},
        weights={"layer.w": Weight("f32", w.numpy()), "layer.b": Weight("f32", b.numpy())},
        libraries=bullet_library.needs,
    )
