"""``precast doctor`` where there is a GPU."""

from pathlib import Path
from typing import Any

from precast.cli import doctor
from precast.runtime.gpu.libraries import NvidiaLibrary


def test_every_gpu_is_told_with_its_driver(fake_gpu: Any, tmp_path: Path) -> None:
    release = tmp_path / "version"
    release.write_text("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build\n")
    with fake_gpu.settings(devices=2, version=12080):
        finding = doctor.examine_gpus(release)
    assert finding.ok
    assert finding.found == "Fake (sm_90), Fake (sm_90), driver 580.65.06, CUDA 12.8"


def test_a_driver_without_a_gpu_is_told(fake_gpu: Any, tmp_path: Path) -> None:
    with fake_gpu.settings(init=100):
        finding = doctor.examine_gpus(tmp_path / "version")
    assert (finding.ok, finding.found) == (False, "the CUDA driver finds no GPU")
    assert not finding.is_fatal


def test_nvidias_libraries_are_found_in_wheels(tmp_path: Path, monkeypatch: Any) -> None:
    library = NvidiaLibrary("libsurelynotthere.so", (9,), "convolutions", "pip install it")
    assert not doctor.examine_nvidia_library("it", library).ok
    wheel = tmp_path / "nvidia" / "it" / "lib" / "libsurelynotthere.so.9"
    wheel.parent.mkdir(parents=True)
    wheel.touch()
    monkeypatch.syspath_prepend(tmp_path)
    assert doctor.examine_nvidia_library("it", library).found == str(wheel)
