"""The C++ program of examples/cmake builds with find_package(precast) and prints what eager computes."""

import shutil
import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location

import pytest
import torch

from precast.cli.paths import Part, installed_paths
from tests.repository.sources import ROOT


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("cmake") is None, reason="cmake is not installed")
def test_a_program_is_linked_with_a_compiled_model(tmp_path):
    folder = shutil.copytree(ROOT / "examples" / "cmake", tmp_path / "cmake")
    compile_model = ["-m", "precast", "compile", "model.py:make", "-o", "libclassifier.so"]
    subprocess.run([sys.executable, *compile_model], cwd=folder, check=True)
    paths = installed_paths()
    where = [f"-Dprecast_DIR={paths[Part.CMAKE]}", f"-Dprecast_ONEDNN_LIBRARY={paths[Part.ONEDNN]}"]
    for command in (["-S", folder, "-B", tmp_path / "build", *where], ["--build", tmp_path / "build"]):
        done = subprocess.run(["cmake", *command], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    numbers = ["5.1", "3.5", "1.4", "0.2"]
    printed = subprocess.run([tmp_path / "build" / "classify", *numbers], capture_output=True, text=True, check=True)
    spec = spec_from_file_location("cmake_example_model", folder / "model.py")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    expected = module.make()[0](torch.tensor([list(map(float, numbers))]))
    torch.testing.assert_close(torch.tensor([list(map(float, printed.stdout.split()))]), expected, atol=2e-6, rtol=0)
