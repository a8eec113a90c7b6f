// Special functions, one element at a time: computed in double, rounded once.
#pragma once

#include <cstdint>
#include <limits>

#include "precast_library.h"

namespace precast {

namespace special {

constexpr double pi = 3.14159265358979323846, root_half = 0.70710678118654752440;
constexpr double infinite = std::numeric_limits<double>::infinity(), undefined = std::numeric_limits<double>::quiet_NaN();

// Sum over k of (x²/4)^k / (k! (k + order)!), times e^-|x| if scaled; for large x, the asymptotic series.
inline double modified_first(double x, int order, bool is_scaled) {
    const double size = library::fabs(x), sign = order == 1 && x < 0 ? -1 : 1;
    if (size > 30) {
        double term = 1, total = 1;
        for (int k = 1; k < 24; ++k) {
            term *= -(4. * order * order - (2. * k - 1) * (2. * k - 1)) / (8 * size * k);
            total += term;
        }
        const double scaled = sign * total / library::sqrt(2 * pi * size);
        // In two steps, since e^x overflows a little before the product does.
        return is_scaled ? scaled : scaled * library::exp(size / 2) * library::exp(size / 2);
    }
    double term = order == 1 ? size / 2 : 1, total = term;
    for (int k = 1; term > total * 1e-18; ++k) total += term *= size * size / 4 / (k * (k + double(order)));
    return sign * total * (is_scaled ? library::exp(-size) : 1);
}

// e^x K(x): the integral of e^(x - x cosh t) cosh(order t), by the trapezoidal rule, which is nearly exact here.
inline double modified_second_scaled(double x, int order) {
    if (x < 0 || x != x) return undefined;
    if (x == 0 || library::isinf(x)) return x == 0 ? infinite : 0;
    constexpr double step = 0.125;
    double total = 0.5;
    for (int k = 1;; ++k) {
        const double bend = library::sinh(k * step / 2), exponent = -2 * x * bend * bend;
        if (exponent < -50 - (order ? k * step : 0)) break;
        total += library::exp(exponent) * (order ? library::cosh(k * step) : 1);
    }
    return total * step;
}

inline double scaled_complementary_error(double x) {
    if (x < 10) {
        // The rounding error of the square counts: it is exponentiated.
        const double square = x * x, rest = library::fma(x, x, -square);
        return x < -27 ? infinite : library::exp(square) * library::exp(rest) * library::erfc(x);
    }
    double term = 1, total = 1;
    for (int k = 1; k < 16; ++k) total += term *= -(2. * k - 1) / (2 * x * x);
    return total / (x * library::sqrt(pi));
}

inline double horner(double x, const double* coefficients, int count) {
    double total = 0;
    for (int i = 0; i < count; ++i) total = total * x + coefficients[i];
    return total;
}

// The quantile of the normal distribution: Acklam's rational approximation, then steps of Halley's method.
inline double normal_quantile(double p) {
    if (!(p >= 0 && p <= 1)) return undefined;
    if (p == 0 || p == 1) return p == 0 ? -infinite : infinite;
    constexpr double a[] = {-3.969683028665376e+01, 2.209460984245205e+02, -2.759285104469687e+02,
                            1.383577518672690e+02, -3.066479806614716e+01, 2.506628277459239e+00};
    constexpr double b[] = {-5.447609879822406e+01, 1.615858368580409e+02, -1.556989798598866e+02,
                            6.680131188771972e+01, -1.328068155288572e+01, 1};
    constexpr double c[] = {-7.784894002430293e-03, -3.223964580411365e-01, -2.400758277161838e+00,
                            -2.549732539343734e+00, 4.374664141464968e+00, 2.938163982698783e+00};
    constexpr double d[] = {7.784695709041462e-03, 3.224671290700398e-01, 2.445134137142996e+00, 3.754408661907416e+00, 1};
    const bool is_upper = p > 0.5;
    const double tail = is_upper ? 1 - p : p;
    double x;
    if (tail < 0.02425) {
        const double q = library::sqrt(-2 * library::log(tail));
        x = horner(q, c, 6) / horner(q, d, 5);
    } else {
        const double q = tail - 0.5, r = q * q;
        x = q * horner(r, a, 6) / horner(r, b, 6);
    }
    for (int i = 0; i < 2; ++i) {
        const double error = 0.5 * library::erfc(-x * root_half) - tail;
        const double slip = error * library::sqrt(2 * pi) * library::exp(x * x / 2);
        if (slip == slip && library::fabs(slip) < 1) x -= slip / (1 + x * slip / 2);
    }
    return is_upper ? -x : x;
}

inline double inverse_error(double x) {
    if (!(library::fabs(x) < 1)) return x == 1 ? infinite : (x == -1 ? -infinite : undefined);
    const double size = library::fabs(x);
    double y = normal_quantile((1 + size) / 2) * root_half;
    if (size < 1e-3) y = size * library::sqrt(pi) / 2;
    for (int i = 0; i < 2; ++i) {
        const double error = size < 0.5 ? library::erf(y) - size : (1 - size) - library::erfc(y);
        const double slip = error * library::sqrt(pi) / 2 * library::exp(y * y);
        if (slip == slip && library::fabs(slip) < 1) y -= slip / (1 + y * slip);
    }
    return library::copysign(y, x);
}

// The sum over k of (k + q)^-x: the first terms directly, the rest by the Euler-Maclaurin formula.
inline double hurwitz_zeta(double x, double q) {
    if (x == 1) return infinite;
    if (x < 1 || x != x || q != q || q == infinite) return undefined;
    if (q <= 0) {
        if (q == library::floor(q)) return infinite;
        if (x != library::floor(x)) return undefined;
    }
    double total = 0;
    for (; q < 10; q += 1) total += library::pow(q, -x);
    total += library::pow(q, 1 - x) / (x - 1) + 0.5 * library::pow(q, -x);
    constexpr double bernoulli[] = {1. / 6, -1. / 30, 1. / 42, -1. / 30, 5. / 66, -691. / 2730, 7. / 6, -3617. / 510,
                                    43867. / 798, -174611. / 330};
    double factor = x * library::pow(q, -x - 1) / 2;
    for (int k = 0; k < 10; ++k) {
        total += bernoulli[k] * factor;
        factor *= (x + 2 * k + 1) * (x + 2 * k + 2) / (q * q * (2 * k + 3) * (2 * k + 4));
    }
    return total;
}

// The regularized lower or upper incomplete gamma function: the smaller one is computed, by series or continued fraction.
inline double incomplete_gamma(double a, double x, bool is_upper) {
    if (!(a >= 0) || !(x >= 0)) return undefined;
    if (a == 0) return x > 0 ? !is_upper : undefined;
    if (x == 0) return is_upper;
    if (library::isinf(a)) return library::isinf(x) ? undefined : is_upper;
    if (library::isinf(x)) return !is_upper;
    const double front = library::exp(a * library::log(x) - x - library::lgamma(a));
    if (x < a + 1) {
        double term = 1 / a, total = term;
        for (double n = a + 1; term > total * 1e-17; n += 1) total += term *= x / n;
        return is_upper ? 1 - front * total : front * total;
    }
    constexpr double tiny = 1e-300;
    double b = x + 1 - a, c = 1 / tiny, d = 1 / b, fraction = d;
    for (int n = 1; n < 100000; ++n) {
        const double numerator = -n * (n - a);
        b += 2;
        d = numerator * d + b;
        c = b + numerator / c;
        d = 1 / (d == 0 ? tiny : d);
        c = c == 0 ? tiny : c;
        fraction *= d * c;
        if (library::fabs(d * c - 1) < 1e-16) break;
    }
    return is_upper ? front * fraction : 1 - front * fraction;
}

// Polynomials of a degree, by their recurrence.
template <class T, class Next>
inline T by_recurrence(T degree, T first, Next next) {
    if (!(degree > T(-1))) return T(0);
    const int64_t n = static_cast<int64_t>(degree);
    T previous = T(1), current = first;
    if (n == 0) return previous;
    for (int64_t k = 1; k < n; ++k) {
        const T following = next(T(k), current, previous);
        previous = current;
        current = following;
    }
    return current;
}

template <class T>
inline T chebyshev(T x, T n, T first) {
    return by_recurrence(n, first, [x](T, T now, T before) { return (x + x) * now - before; });
}

}  // namespace special

#define PRECAST_SPECIAL(name, expression)        \
    template <class T>                           \
    inline T name(T argument) {                  \
        const double x = argument;               \
        return static_cast<T>(expression);       \
    }
// At infinity eager returns NaN, and so do we.
PRECAST_SPECIAL(bessel_j0, library::isinf(x) ? special::undefined : ::j0(x))
PRECAST_SPECIAL(bessel_j1, library::isinf(x) ? special::undefined : ::j1(x))
PRECAST_SPECIAL(bessel_y0, x > 0 && !library::isinf(x) ? ::y0(x) : (x == 0 ? -special::infinite : special::undefined))
PRECAST_SPECIAL(bessel_y1, x > 0 && !library::isinf(x) ? ::y1(x) : (x == 0 ? -special::infinite : special::undefined))
PRECAST_SPECIAL(erfcx, special::scaled_complementary_error(x))
PRECAST_SPECIAL(erfinv, special::inverse_error(x))
PRECAST_SPECIAL(exp2, library::exp2(x))
PRECAST_SPECIAL(i0, special::modified_first(x, 0, false))
PRECAST_SPECIAL(i0e, special::modified_first(x, 0, true))
PRECAST_SPECIAL(i1, special::modified_first(x, 1, false))
PRECAST_SPECIAL(i1e, special::modified_first(x, 1, true))
PRECAST_SPECIAL(modified_bessel_k0, special::modified_second_scaled(x, 0) * library::exp(-x))
PRECAST_SPECIAL(modified_bessel_k1, special::modified_second_scaled(x, 1) * library::exp(-x))
PRECAST_SPECIAL(scaled_modified_bessel_k0, special::modified_second_scaled(x, 0))
PRECAST_SPECIAL(scaled_modified_bessel_k1, special::modified_second_scaled(x, 1))
PRECAST_SPECIAL(ndtri, special::normal_quantile(x))
PRECAST_SPECIAL(spherical_bessel_j0, library::isinf(x) ? 0 : (library::fabs(x) < 1e-4 ? 1 - x * x / 6 : library::sin(x) / x))
#undef PRECAST_SPECIAL

#define PRECAST_SPECIAL(name, expression)                   \
    template <class T>                                      \
    inline T name(T first, T second) {                      \
        const double x = first, y = second;                 \
        return static_cast<T>(expression);                  \
    }
PRECAST_SPECIAL(zeta, special::hurwitz_zeta(x, y))
PRECAST_SPECIAL(gammainc, special::incomplete_gamma(x, y, false))
PRECAST_SPECIAL(gammaincc, special::incomplete_gamma(x, y, true))
#undef PRECAST_SPECIAL

template <class T>
inline T chebyshev_polynomial_t(T x, T n) {
    return special::chebyshev(x, n, x);
}
template <class T>
inline T chebyshev_polynomial_u(T x, T n) {
    return special::chebyshev(x, n, x + x);
}
template <class T>
inline T chebyshev_polynomial_v(T x, T n) {
    return special::chebyshev(x, n, x + x - T(1));
}
template <class T>
inline T chebyshev_polynomial_w(T x, T n) {
    return special::chebyshev(x, n, x + x + T(1));
}
template <class T>
inline T hermite_polynomial_h(T x, T n) {
    return special::by_recurrence(n, x + x, [x](T k, T now, T before) { return (x + x) * now - (k + k) * before; });
}
template <class T>
inline T hermite_polynomial_he(T x, T n) {
    return special::by_recurrence(n, x, [x](T k, T now, T before) { return x * now - k * before; });
}
template <class T>
inline T laguerre_polynomial_l(T x, T n) {
    return special::by_recurrence(n, T(1) - x, [x](T k, T now, T before) {
        return ((k + k + T(1) - x) * now - k * before) / (k + T(1));
    });
}
template <class T>
inline T legendre_polynomial_p(T x, T n) {
    return special::by_recurrence(n, x, [x](T k, T now, T before) {
        return ((k + k + T(1)) * x * now - k * before) / (k + T(1));
    });
}

}  // namespace precast
