"""The example in plain C builds with one line and gives the right numbers."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import torch

from tests.lower.pipeline import tracer_bullet

ROOT = Path(__file__).parents[2]


def example_values(count):
    return torch.tensor([(number % 7) / 7 - 0.4 for number in range(count)])


def test_the_c_example(bullet_library, tmp_path):
    (tmp_path / "model.so").write_bytes(bullet_library.path.read_bytes())
    libraries = Path(sys.prefix) / "lib"
    source, program = ROOT / "examples" / "c" / "run_model.c", tmp_path / "run_model"
    flags = ["-std=c11", "-Wall", "-Wextra", "-Werror", "-pedantic", "-I", ROOT / "include"]
    link = ["-Wl,--no-as-needed", tmp_path / "model.so", libraries / "libdnnl.so.3", f"-Wl,-rpath,{libraries}"]
    subprocess.run(["cc", *flags, source, *link, "-o", program], check=True)
    printed = subprocess.run([program], check=True, capture_output=True, text=True).stdout.splitlines()
    assert json.loads(printed[0])["name"] == "forward"
    x, w, b = example_values(32).view(8, 4), example_values(24).view(4, 6), example_values(6)
    expected = [each.flatten()[0].item() for each in tracer_bullet(x, w, b, torch.tensor(1.0))]
    np.testing.assert_allclose([float(line) for line in printed[1:]], expected, rtol=1e-5)


def test_the_header_is_valid_c_and_cpp():
    for command in (["cc", "-std=c11", "-x", "c"], ["g++", "-std=c++17", "-x", "c++"]):
        arguments = [
            *command,
            "-Wall",
            "-Wextra",
            "-Werror",
            "-pedantic",
            "-fsyntax-only",
            ROOT / "include" / "precast.h",
        ]
        subprocess.run(arguments, check=True)


def test_both_headers_can_be_included_with_dlpack(tmp_path):
    layout = (
        '#include "precast.h"\n#include <stddef.h>\n'
        '_Static_assert(sizeof(precast_tensor) == 48, "DLTensor\'s size");\n'
        '_Static_assert(offsetof(precast_tensor, shape) == 24 && offsetof(precast_tensor, byte_offset) == 40, "");\n'
    )
    (tmp_path / "layout.c").write_text(layout)
    subprocess.run(["cc", "-std=c11", "-fsyntax-only", "-I", ROOT / "include", tmp_path / "layout.c"], check=True)
