"""The math header keeps the error bounds that it states, and the C library's special cases."""

import ctypes
import math
import re
from pathlib import Path

import mpmath
import numpy as np
import pytest

import precast.native.targets.cpu
from precast.native.targets.cpu.build.compiler import COMPILE_FLAGS, find_compiler, run_compiler

HEADERS = Path(precast.native.targets.cpu.__file__).parent / "include"
EXACT = {
    "exp": mpmath.exp,
    "expm1": mpmath.expm1,
    "log": mpmath.log,
    "log1p": mpmath.log1p,
    "tanh": mpmath.tanh,
    "erf": mpmath.erf,
    "sigmoid": lambda x: 1 / (1 + mpmath.exp(-x)),
    "sin": mpmath.sin,
    "cos": mpmath.cos,
}
NUMPY = {"exp": np.exp, "expm1": np.expm1, "log": np.log, "log1p": np.log1p, "tanh": np.tanh, "sin": np.sin}


def stated_bounds():
    """The table in the header's first comment."""
    text = (HEADERS / "precast_math.h").read_text()
    names = re.search(r"//\s+(exp\s.*)", text)[1].split()
    rows = {kind: re.search(rf"//\s+{kind}\s+([\d. ]+)", text)[1].split() for kind in ("float", "double")}
    return {(name, kind): float(bound) for kind, row in rows.items() for name, bound in zip(names, row, strict=True)}


@pytest.fixture(scope="module")
def functions(tmp_path_factory):
    lines = ['#include "precast_math.h"']
    for name in EXACT:
        for kind in ("float", "double"):
            lines += [f'extern "C" void {name}_{kind}(const {kind}* x, {kind}* y, long n) {{', "#pragma omp simd",
                      f"for (long i = 0; i < n; ++i) y[i] = precast::{name}(x[i]); }}"]  # fmt: skip
    folder = tmp_path_factory.mktemp("math")
    (folder / "math.cpp").write_text("\n".join(lines))
    arguments = [*COMPILE_FLAGS, "-fvisibility=default", "-shared", "-I", HEADERS, folder / "math.cpp", "-o"]
    path = folder / "math.so"
    run_compiler(find_compiler(), [*arguments, path], what="math")
    library = ctypes.CDLL(str(path))

    def call(name, x):
        y = np.empty_like(x)
        kind = "float" if x.dtype == np.float32 else "double"
        getattr(library, f"{name}_{kind}")(ctypes.c_void_p(x.ctypes.data), ctypes.c_void_p(y.ctypes.data), len(x))
        return y

    return call


def points(name, dtype):
    random = np.random.default_rng(0)
    large = 87 if dtype == np.float32 else 700
    parts = [random.uniform(-1, 1, 800), random.uniform(-10, 10, 800), random.uniform(-large, large, 400),
             random.normal(size=300) * 10.0 ** random.uniform(-30, 0, 300)]  # fmt: skip
    values = np.concatenate(parts).astype(dtype)
    lowest = {"log": 0, "log1p": -1}.get(name, -np.inf)
    return np.where(values > lowest, values, np.abs(values))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", EXACT)
def test_error_stays_within_the_stated_bound(functions, name, dtype):
    bound = stated_bounds()[name, "float" if dtype == np.float32 else "double"]
    x = points(name, dtype)
    worst = 0.0
    with mpmath.workdps(40):
        for argument, value in zip(x.tolist(), functions(name, x).tolist(), strict=True):
            exact = EXACT[name](mpmath.mpf(argument))
            unit = float(np.spacing(np.abs(dtype(float(exact)))))
            worst = max(worst, float(abs(mpmath.mpf(value) - exact)) / unit)
    assert worst <= bound


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", NUMPY)
def test_special_values_are_those_of_the_c_library(functions, name, dtype):
    x = np.array(
        [0.0, -0.0, math.inf, -math.inf, math.nan, 1e30, -1e30, 1e-45 if dtype == np.float32 else 5e-324], dtype
    )
    with np.errstate(all="ignore"):
        expected = NUMPY[name](x)
    mine = functions(name, x)
    np.testing.assert_allclose(mine, expected, rtol=1e-6)
    is_number = ~np.isnan(expected)
    np.testing.assert_array_equal(np.signbit(mine)[is_number], np.signbit(expected)[is_number])


def test_results_below_the_normal_range_are_kept(functions):
    x = np.array([-100.0, -103.0], np.float32)
    np.testing.assert_allclose(functions("exp", x), np.exp(x.astype(np.float64)), atol=1.5e-45)
