"""Prints the coefficients of exp and erf in precast_math.h: least squares at Chebyshev points, in 60 digits.

Run: ``python tests/native/cpu/fit_polynomials.py``.
"""

import mpmath as mp

mp.mp.dps = 60


def fit(function, low, high, degree, weight=lambda _: mp.mpf(1)):
    """Coefficients, highest power first, of the polynomial with the least weighted squared error."""
    count = 3 * degree + 12
    middle, half = (low + high) / 2, (high - low) / 2
    points = [middle + half * mp.cos(mp.pi * (mp.mpf(n) + 0.5) / count) for n in range(count)]
    rows, values = mp.matrix(count, degree + 1), mp.matrix(count, 1)
    for row, point in enumerate(points):
        values[row] = weight(point) * function(point)
        for power in range(degree + 1):
            rows[row, power] = weight(point) * point**power
    solved = mp.lu_solve(rows, values)
    return [solved[power] for power in reversed(range(degree + 1))]


def erf_over_x(square):
    """``erf(x) / x`` as a function of x²."""
    return mp.erf(mp.sqrt(square)) / mp.sqrt(square) if square else 2 / mp.sqrt(mp.pi)


def exp_slope(x):
    """``(e^x - 1) / x``."""
    return mp.expm1(x) / x if x else mp.mpf(1)


def minus_log_erfc(x):
    return -mp.log(mp.erfc(x))


def minus_log_erfc_over_x(x):
    return minus_log_erfc(x) / x if x else 2 / mp.sqrt(mp.pi)


def relative_weight(x):
    """How much an error of the above counts in ``erf(x)``, relative to it."""
    return mp.erfc(x) * x / mp.erf(x) if x else mp.mpf(1)


if __name__ == "__main__":
    zero, one = mp.mpf(0), mp.mpf(1)
    reach = mp.log(2) / 2 * mp.mpf("1.0005")
    print("float, exp:", [mp.nstr(c, 9) for c in fit(exp_slope, -reach, reach, 5)])
    print("double, exp:", [mp.nstr(c, 19) for c in fit(exp_slope, -reach, reach, 10)])
    print("float, erf:", [mp.nstr(c, 9) for c in fit(minus_log_erfc_over_x, zero, mp.mpf(4), 8, relative_weight)])
    print("double, near:", [mp.nstr(c, 19) for c in fit(erf_over_x, zero, one, 12)])
    print("double, far:", [mp.nstr(c, 19) for c in fit(minus_log_erfc, one, mp.mpf(6), 18, mp.erfc)])
    print("The last coefficient of `float, erf` and of `near` is written less 1: the header computes x + x·p.")
