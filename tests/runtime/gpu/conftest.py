"""What tests of packages for GPUs share."""

import ctypes
from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture(scope="session")
def built_fake_gpu(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Built once; skipped where the driver's name already stands for another one."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        # Imported late: Triton must know by then that it is to interpret.
        from tests.runtime.gpu.fake_gpu import FakeGpu

        return FakeGpu(tmp_path_factory.mktemp("fake-gpu"))
    pytest.skip("this machine has a real CUDA driver")


@pytest.fixture
def fake_gpu(built_fake_gpu: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    from precast.native.targets.cuda.build import packaged

    monkeypatch.setattr(packaged, "start_cubins", built_fake_gpu.start_cubins)
    with built_fake_gpu.settings():
        yield built_fake_gpu
