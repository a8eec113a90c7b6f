"""The generated code under the address and undefined-behaviour sanitizers."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = """
import sys
from pathlib import Path
from precast.build.library import build
from precast.cache import Store
from precast.codegen.generate import generate
from precast.runtime import open_library
from tests.lower.pipeline import lowered, make_entry
from tests.lower import test_attention, test_convolution, test_indexing, test_normalization, test_operators
from tests.lower import test_bags, test_ordering, test_pooling, test_random, test_resampling, test_special

CASES = test_operators.CASES
DYNAMIC = ("softmax", "cat", "sum_columns", "view_of_transposed", "slice", "layer_norm_by_hand", "pad")
cases = {name: (case, False) for name, case in CASES.items() if name != "fallback"}
cases |= {f"{name}_dynamic": (CASES[name], True) for name in DYNAMIC}
for family in (test_attention, test_bags, test_convolution, test_indexing, test_normalization, test_ordering,
               test_pooling, test_resampling, test_special):
    cases |= {f"{family.__name__}_{name}": (case, False) for name, case in family.CASES.items()}
outside = {f"outside_{name}": case for name, case in test_indexing.OUTSIDE.items()}
cases |= {name: (case, False) for name, case in outside.items()}
entries = [make_entry(lowered(function, *inputs, name=name, dynamic=dynamic))
           for name, ((function, inputs), dynamic) in cases.items()]
drawn = {f"random_{name}": [test_random.given(name), test_random.SEED] for name in test_random.CASES}
entries += [make_entry(test_random.random_program(function, test_random.given(name), name=f"random_{name}"))
            for name, function in test_random.CASES.items()]
flags = ["-fsanitize=address,undefined", "-O1", "-fno-sanitize-recover=undefined"]
library = build(generate(entries), store=Store(Path(sys.argv[1]), limit=2**30), extra_flags=flags)
model = open_library(library.path, needs=library.needs)
for name, ((_, inputs), _) in cases.items():
    try:
        model[name](*inputs)
    except (IndexError, RuntimeError):
        assert name in outside, name
for name, inputs in drawn.items():
    model[name](*inputs)
print("clean")
"""


def runtime_library(name):
    return subprocess.run(
        ["g++", f"-print-file-name={name}"], capture_output=True, text=True, check=True
    ).stdout.strip()


@pytest.mark.slow
def test_every_operator_is_clean(tmp_path):
    environment = os.environ | {
        "LD_PRELOAD": f"{runtime_library('libasan.so')}:{runtime_library('libubsan.so')}",
        "ASAN_OPTIONS": "detect_leaks=0",
        "PYTHONPATH": str(ROOT),
    }
    command = [sys.executable, "-c", SCRIPT, str(tmp_path)]
    finished = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=ROOT, check=False)
    assert finished.stdout.endswith("clean\n"), finished.stderr[-3000:]
