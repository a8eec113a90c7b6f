"""What the C library computes for vectors of floats is near what it computes for one double."""

import ctypes
from pathlib import Path

import numpy as np
import pytest
import torch

import precast
import precast.native.targets.cpu
from precast.native.targets.cpu.build.compiler import COMPILE_FLAGS, find_compiler, run_compiler

HEADERS = Path(precast.native.targets.cpu.__file__).parent / "include"
ONE = ("acos", "acosh", "asin", "asinh", "atan", "atanh", "cosh", "erfc", "log10", "log2", "sinh", "tan")
TWO = ("atan2", "hypot")
SPECIAL = [0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 1e-40, 3e38]


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    lines = ['#include "precast_math.h"']
    for name in (*ONE, *TWO):
        arguments = "x[i]" if name in ONE else "x[i], y[i]"
        for kind in ("float", "double"):
            lines += [
                f'extern "C" void {name}_{kind}(const {kind}* x, const {kind}* y, {kind}* result, long n) {{',
                "#pragma omp simd",
                f"for (long i = 0; i < n; ++i) result[i] = precast::library::{name}({arguments}); }}",
            ]
    folder = tmp_path_factory.mktemp("math")
    source, path = folder / "math.cpp", folder / "math.so"
    source.write_text("\n".join(lines))
    arguments = [*COMPILE_FLAGS, "-fvisibility=default", "-shared", "-I", HEADERS, source, "-o", path]
    run_compiler(find_compiler(), arguments, what="math")
    return ctypes.CDLL(str(path))


def computed(library, name, x, y):
    result = np.empty_like(x)
    pointers = [ctypes.c_void_p(each.ctypes.data) for each in (x, y, result)]
    getattr(library, f"{name}_{'float' if x.dtype == np.float32 else 'double'}")(*pointers, len(x))
    return result


@pytest.mark.parametrize("name", [*ONE, *TWO])
def test_vectors_are_within_three_units_and_have_the_special_values(library, name):
    random = np.random.default_rng(0)
    ordinary = [random.uniform(-bound, bound, 3000) for bound in (1, 10, 1e4)]
    x = np.concatenate([*ordinary, np.repeat(SPECIAL, len(SPECIAL))]).astype(np.float32)
    y = np.concatenate([random.uniform(-10, 10, 9000), np.tile(SPECIAL, len(SPECIAL))]).astype(np.float32)
    exact = computed(library, name, x.astype(np.float64), y.astype(np.float64))
    ours = computed(library, name, x, y)
    with np.errstate(over="ignore", invalid="ignore"):
        nearest = exact.astype(np.float32)
        distance = np.abs(ours - exact) / np.spacing(np.abs(nearest))
    plain = np.isfinite(nearest) & (nearest != 0)
    assert distance[plain].max() <= 3
    np.testing.assert_array_equal(ours[~plain], nearest[~plain])
    np.testing.assert_array_equal(np.signbit(ours[nearest == 0]), np.signbit(nearest[nearest == 0]))


def test_results_do_not_depend_on_the_number_of_threads():
    """Threads get whole vectors: an element that is left over would be computed by another function."""
    threads, x = torch.get_num_threads(), torch.randn(100_003)
    compiled = precast.compile(torch.tan)
    try:
        results = [(torch.set_num_threads(count), compiled(x))[1] for count in (1, 2, 3)]
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(each, results[0]) for each in results)
