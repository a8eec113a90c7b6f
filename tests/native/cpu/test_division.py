"""The remainder of floats as a vector is the C library's, to the last bit."""

import ctypes
from pathlib import Path

import numpy as np
import pytest

import precast.native.targets.cpu
from precast.native.targets.cpu.build.compiler import COMPILE_FLAGS, find_compiler, run_compiler

HEADERS = Path(precast.native.targets.cpu.__file__).parent / "include"
SOURCE = """
#include "precast_kernels.h"
extern "C" void rests(const float* a, const float* b, float* rest, long count) {
    #pragma omp simd
    for (long i = 0; i < count; ++i) rest[i] = precast::fmod(a[i], b[i]);
}
"""
SPECIAL = np.array(
    [0, -0.0, 1, -1, 3e38, -3e38, 1e-45, -1e-45, 1e-40, np.inf, -np.inf, np.nan, 0.7, 5, 1e-30], np.float32
)


@pytest.fixture(scope="module")
def rests(tmp_path_factory):
    folder = tmp_path_factory.mktemp("division")
    (folder / "division.cpp").write_text(SOURCE)
    arguments = [*COMPILE_FLAGS, "-fvisibility=default", "-shared", "-I", HEADERS, folder / "division.cpp", "-o"]
    run_compiler(find_compiler(), [*arguments, folder / "division.so"], what="division")
    function = ctypes.CDLL(str(folder / "division.so")).rests

    def call(a, b):
        rest = np.empty_like(a)
        function(*(ctypes.c_void_p(each.ctypes.data) for each in (a, b, rest)), len(a))
        return rest

    return call


def assert_same_bits(mine, expected):
    np.testing.assert_array_equal(np.isnan(mine), np.isnan(expected))
    is_number = ~np.isnan(expected)
    np.testing.assert_array_equal(mine[is_number].view(np.uint32), expected[is_number].view(np.uint32))


@pytest.mark.parametrize("is_near", [False, True])
def test_any_two_floats_leave_the_rest_that_the_c_library_finds(rests, is_near):
    a, b = np.random.default_rng(0).integers(0, 2**32, (2, 200_000), np.uint32)
    if is_near:
        # Exponents around that of 1, so that quotients are ordinary numbers.
        a, b = (
            bits & np.uint32(0x807FFFFF) | np.uint32(100) + bits % np.uint32(54) << np.uint32(23) for bits in (a, b)
        )
    a, b = a.view(np.float32), b.view(np.float32)
    with np.errstate(all="ignore"):
        assert_same_bits(rests(a, b), np.fmod(a, b))


def test_special_numbers_leave_what_they_leave_in_the_c_library(rests):
    a, b = (np.ascontiguousarray(each.ravel()) for each in np.meshgrid(SPECIAL, SPECIAL))
    with np.errstate(all="ignore"):
        assert_same_bits(rests(a, b), np.fmod(a, b))
