"""The examples in C and C++ build with one line and give the right numbers."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import precast.runtime

ROOT = Path(__file__).parents[2]
ONEDNN = Path(sys.prefix) / "lib" / "libdnnl.so.3"
WARNINGS = ["-Wall", "-Wextra", "-Werror", "-pedantic", "-I", ROOT / "include"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("example")


def example():
    spec = importlib.util.spec_from_file_location("make_model", ROOT / "examples" / "make_model.py")
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


@pytest.fixture(scope="module")
def original(folder):
    return example().make_model(folder)


def example_rows(count):
    return torch.tensor([(number % 7) / 7 - 0.4 for number in range(4 * count)]).view(count, 4)


def numbers(lines):
    return [[float(word) for word in line.split()] for line in lines]


def printed(command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()


def test_the_c_example_runs_a_library_with_its_own_weights(original, folder):
    source, program = ROOT / "examples" / "c" / "run_model.c", folder / "run_c"
    link = ["-Wl,--no-as-needed", folder / "model.so", ONEDNN, f"-Wl,-rpath,{ONEDNN.parent}"]
    subprocess.run(["cc", "-std=c11", *WARNINGS, source, *link, "-o", program], check=True)
    description, *rows, state = printed([program])
    assert json.loads(description)["sizes"][0]["range"] == [1, 1024]
    np.testing.assert_allclose(numbers(rows), original(example_rows(6)).detach(), atol=2e-6)
    assert state == "rows_seen 6"


def test_the_cpp_example_maps_weights_and_calls_from_several_threads(original, folder):
    source, program = ROOT / "examples" / "cpp" / "run_model.cpp", folder / "run_cpp"
    subprocess.run(["c++", "-std=c++17", *WARNINGS, source, "-ldl", "-pthread", "-o", program], check=True)
    unpacked = folder / "package"
    rows = printed([program, ONEDNN, unpacked / "native/native/model.so", unpacked / "weights.safetensors"])
    expected = [original(example_rows(count)).detach()[0] for count in range(1, 5)]
    np.testing.assert_allclose(numbers(rows), torch.stack(expected), atol=2e-6)


def training_batch(step):
    number = (7 * step + 5 * np.arange(16)[:, None] + 3 * np.arange(4)) % 16
    return (number / 16).astype(np.float32), (number / 64).sum(1, keepdims=True).astype(np.float32)


@pytest.mark.slow
def test_the_cpp_example_trains_as_python_does(folder):
    path = example().make_step(folder)
    source, program = ROOT / "examples" / "cpp" / "train_model.cpp", folder / "train_cpp"
    subprocess.run(["c++", "-std=c++17", *WARNINGS, source, "-ldl", "-o", program], check=True)
    library, weights = folder / "step" / "native/native/model.so", folder / "step" / "weights.safetensors"
    lines = printed([program, ONEDNN, library, weights, "60"])
    model, losses = precast.runtime.load(path), []
    for step in range(60):
        if step == 30:
            model.state["optimizer.groups.0.lr"] = np.array(1e-3)
        losses.append(float(model["train_step"](training_batch(step))))
    found = [float(line.rpartition(" ")[2]) for line in lines]
    np.testing.assert_allclose(found, [losses[step] for step in (0, 20, 40, 59)], rtol=1e-6)
    assert losses[-1] < losses[0] / 3


def test_the_header_is_valid_c_and_cpp():
    for command in (["cc", "-std=c11", "-x", "c"], ["g++", "-std=c++17", "-x", "c++"]):
        subprocess.run([*command, *WARNINGS, "-fsyntax-only", ROOT / "include" / "precast.h"], check=True)


def test_both_headers_can_be_included_with_dlpack(tmp_path):
    layout = (
        '#include "precast.h"\n#include <stddef.h>\n'
        '_Static_assert(sizeof(precast_tensor) == 48, "DLTensor\'s size");\n'
        '_Static_assert(offsetof(precast_tensor, shape) == 24 && offsetof(precast_tensor, byte_offset) == 40, "");\n'
    )
    (tmp_path / "layout.c").write_text(layout)
    subprocess.run(["cc", "-std=c11", "-fsyntax-only", "-I", ROOT / "include", tmp_path / "layout.c"], check=True)
