// Scalar functions that a compiler can vectorize: no branches, no tables, no errno, no -ffast-math.
//
// NaN stays NaN, infinities and signed zeros behave as in the C library, results below the normal range are kept.
// Largest error against the exact value, in units of the last place (tests/native/cpu/test_math.py measures it):
//
//            exp    expm1   log    log1p  tanh   erf    sigmoid  sin    cos
//   float    1.5    2.0     1.0    1.5    3.0    1.5    2.5      2.0    2.0
//   double   1.5    2.0     1.0    1.5    3.0    2.0    2.5      1.0    1.0
//
// Functions without a version of ours call the C library: within 3 units for floats, vectorized where the library has vector
// variants, and one element at a time otherwise.
#pragma once

#include <cstdint>
#include <limits>
#include <type_traits>

#include "precast_library.h"

// The GNU C library has vector variants of these, but declares them only under -ffast-math.
#if defined(__x86_64__) && defined(__GLIBC__) && !defined(__clang__)
extern "C" {
__attribute__((__simd__("notinbranch"))) float cosf(float) noexcept;
__attribute__((__simd__("notinbranch"))) float sinf(float) noexcept;
__attribute__((__simd__("notinbranch"))) float powf(float, float) noexcept;
#if __GLIBC_PREREQ(2, 35)
__attribute__((__simd__("notinbranch"))) float acosf(float) noexcept;
__attribute__((__simd__("notinbranch"))) float acoshf(float) noexcept;
__attribute__((__simd__("notinbranch"))) float asinf(float) noexcept;
__attribute__((__simd__("notinbranch"))) float asinhf(float) noexcept;
__attribute__((__simd__("notinbranch"))) float atan2f(float, float) noexcept;
__attribute__((__simd__("notinbranch"))) float atanf(float) noexcept;
__attribute__((__simd__("notinbranch"))) float atanhf(float) noexcept;
__attribute__((__simd__("notinbranch"))) float coshf(float) noexcept;
__attribute__((__simd__("notinbranch"))) float erfcf(float) noexcept;
__attribute__((__simd__("notinbranch"))) float hypotf(float, float) noexcept;
__attribute__((__simd__("notinbranch"))) float log10f(float) noexcept;
__attribute__((__simd__("notinbranch"))) float log2f(float) noexcept;
__attribute__((__simd__("notinbranch"))) float sinhf(float) noexcept;
__attribute__((__simd__("notinbranch"))) float tanf(float) noexcept;
#endif
}
#endif

namespace precast {

template <class T>
struct format;

template <>
struct format<float> {
    using bits = uint32_t;
    static constexpr int mantissa = 23, bias = 127;
    static constexpr float to_integer = 0x1.8p23f;  // adding it rounds to a whole number, kept in the low bits
    static constexpr float log2_e = 1.44269504088896341f, ln2_high = 0x1.62e4p-1f, ln2_low = 0x1.7f7d1cf8p-20f;
    static constexpr float exp_highest = 89.0f, exp_lowest = -105.0f, tanh_is_one = 10.0f, erf_is_one = 4.0f;
    static constexpr float sqrt_half = 0.70710678f, smallest_normal = 0x1p-126f, from_subnormal = 0x1p25f;
    static constexpr int subnormal_shift = 25;
};

template <>
struct format<double> {
    using bits = uint64_t;
    static constexpr int mantissa = 52, bias = 1023;
    static constexpr double to_integer = 0x1.8p52;
    static constexpr double log2_e = 1.44269504088896340736, ln2_high = 0x1.62e42fefa38p-1, ln2_low = 0x1.ef35793c7673p-45;
    static constexpr double exp_highest = 710.0, exp_lowest = -746.0, tanh_is_one = 22.0, erf_is_one = 6.0;
    static constexpr double sqrt_half = 0.70710678118654752440, smallest_normal = 0x1p-1022, from_subnormal = 0x1p54;
    static constexpr int subnormal_shift = 54;
};

template <class T>
inline typename format<T>::bits to_bits(T value) {
    return __builtin_bit_cast(typename format<T>::bits, value);
}

template <class T>
inline T from_bits(typename format<T>::bits bits) {
    return __builtin_bit_cast(T, bits);
}

template <class T>
inline T fused(T a, T b, T c) {
    if constexpr (std::is_same_v<T, float>) return __builtin_fmaf(a, b, c);
    else return __builtin_fma(a, b, c);
}

// NaN propagates.
template <class T>
inline T clamped(T x, T lowest, T highest) {
    const T below = highest < x ? highest : x;
    return lowest > below ? lowest : below;
}

// Horner's scheme, highest power first.
template <class T>
inline T polynomial(T, T only) {
    return only;
}
template <class T, class... Rest>
inline T polynomial(T x, T first, T second, Rest... rest) {
    return polynomial(x, fused(first, x, second), rest...);
}

// (e^r - 1) / r for |r| up to half of ln 2. Coefficients by tests/native/cpu/fit_polynomials.py.
template <class T>
inline T exp_slope_near_zero(T r) {
    if constexpr (std::is_same_v<T, float>) {
        return polynomial<T>(r, 1.39411632e-3f, 8.36918688e-3f, 4.16663522e-2f, 1.66665049e-1f, 0.5f, 1.f);
    } else {
        return polynomial<T>(r, 2.511009630403348889e-8, 2.762642741491593416e-7, 2.755724075965880187e-6,
                             0.00002480150417802821847, 0.0001984126989019589467, 0.001388888893262216805,
                             0.008333333333319544621, 0.04166666666657275923, 0.1666666666666668088, 0.5000000000000005646, 1.);
    }
}

// x = n ln 2 + r with |r| at most half of ln 2; the low bits are n + biases * bias, ready to be made an exponent.
template <class T>
struct reduced {
    T r;
    typename format<T>::bits low_bits;
};
template <int biases, class T>
inline reduced<T> reduce_by_ln2(T x) {
    using F = format<T>;
    constexpr T rounding = F::to_integer + T(biases * F::bias);
    const T shifted = fused(x, F::log2_e, rounding);
    const T n = shifted - rounding;
    return {fused(-n, F::ln2_low, fused(-n, F::ln2_high, x)), to_bits(shifted)};
}

// 2^n for n + bias in the low bits; higher bits are shifted out.
template <class T>
inline T power_of_two(typename format<T>::bits low_bits) {
    return from_bits<T>(low_bits << format<T>::mantissa);
}

// e^x and e^x - 1 where neither overflows nor falls below the normal range.
template <class T>
inline T exp_in_range(T x) {
    const auto [r, low_bits] = reduce_by_ln2<1>(x);
    return fused(r, exp_slope_near_zero(r), T(1)) * power_of_two<T>(low_bits);
}
template <class T>
inline T expm1_in_range(T x) {
    const auto [r, low_bits] = reduce_by_ln2<1>(x);
    const T power = power_of_two<T>(low_bits);
    return fused(r * exp_slope_near_zero(r), power, power - T(1));
}

template <class T>
inline T exp(T x) {
    using F = format<T>;
    // Beyond the bounds, the multiplication itself overflows to infinity, or underflows to 0.
    const auto [r, low_bits] = reduce_by_ln2<2>(clamped(x, F::exp_lowest, F::exp_highest));
    // In two steps, since 2^n itself may be outside the normal range.
    const auto half = low_bits >> 1;
    return fused(r, exp_slope_near_zero(r), T(1)) * power_of_two<T>(half) * power_of_two<T>(low_bits - half);
}

template <class T>
inline T expm1(T x) {
    using F = format<T>;
    // Below -40 the result is -1 to the last bit; above, the scale is split as in exp.
    const auto [r, low_bits] = reduce_by_ln2<2>(clamped(x, T(-40), F::exp_highest));
    const auto half = low_bits >> 1;
    const T first = power_of_two<T>(half), second = power_of_two<T>(low_bits - half);
    const T inverse = power_of_two<T>(2 * F::bias - half), near = r * exp_slope_near_zero(r);
    // (2^n near + 2^n) - 1, with the 1 distributed so that nothing overflows early.
    const T value = (fused(near, second, second - inverse)) * first;
    return x == T(0) ? x : value;
}

template <class T>
inline T log(T x) {
    using F = format<T>;
    using Bits = typename F::bits;
    const bool is_subnormal = x < F::smallest_normal;
    const T scaled = is_subnormal ? x * F::from_subnormal : x;
    const Bits bits = to_bits(scaled);
    // m in [sqrt(1/2), sqrt(2)), so that log m keeps its digits around x = 1.
    const Bits distance = bits - to_bits(F::sqrt_half);
    const Bits exponent = static_cast<Bits>(static_cast<std::make_signed_t<Bits>>(distance) >> F::mantissa);
    const T m = from_bits<T>(bits - (exponent << F::mantissa));
    const T n = from_bits<T>(to_bits(F::to_integer) + exponent) - F::to_integer -
                (is_subnormal ? T(F::subnormal_shift) : T(0));
    const T f = m - T(1), s = f / (T(2) + f), z = s * s;
    T series;
    if constexpr (std::is_same_v<T, float>) {
        series = polynomial<T>(z, 2.f / 11, 2.f / 9, 2.f / 7, 2.f / 5, 2.f / 3);
    } else {
        series = polynomial<T>(z, 2. / 23, 2. / 21, 2. / 19, 2. / 17, 2. / 15, 2. / 13, 2. / 11, 2. / 9, 2. / 7, 2. / 5, 2. / 3);
    }
    // log m = f - s (f - z series): the leading f is exact.
    const T value = fused(n, F::ln2_high, f - (s * (f - z * series) - n * F::ln2_low));
    const T finite = x == T(0) ? -std::numeric_limits<T>::infinity() : value;
    const T non_negative = x < T(0) ? std::numeric_limits<T>::quiet_NaN() : finite;
    return x < std::numeric_limits<T>::infinity() ? non_negative : x;
}

template <class T>
inline T log1p(T x) {
    const T sum = T(1) + x;
    // The rounding error of the sum, whose effect is that of a change of the logarithm's argument.
    const T lost = x < T(1) ? x - (sum - T(1)) : T(1) - (sum - x);
    const bool is_inside = sum > T(0) && sum < std::numeric_limits<T>::infinity();
    return sum == T(1) ? x : log(sum) + (is_inside ? lost / sum : T(0));
}

template <class T>
inline T cos(T x) {
    return library::cos(x);
}
template <class T>
inline T sin(T x) {
    return library::sin(x);
}

template <class T>
inline T tanh(T x) {
    const T size = library::fabs(x);
    const T e = expm1_in_range(T(2) * (size > format<T>::tanh_is_one ? format<T>::tanh_is_one : size));
    return library::copysign(e / (e + T(2)), x);
}

template <class T>
inline T sigmoid(T x) {
    // Of e^x and e^-x, the one that does not overflow.
    const T e = exp(-library::fabs(x));
    return (x < T(0) ? e : T(1)) / (T(1) + e);
}

// 1 - exp(-p(x)); in double precision x times a polynomial in x² below 1. Coefficients by tests/native/cpu/fit_polynomials.py.
template <class T>
inline T erf(T x) {
    const T size = library::fabs(x), t = size > format<T>::erf_is_one ? format<T>::erf_is_one : size;
    if constexpr (std::is_same_v<T, float>) {
        const T p = polynomial<T>(t, -9.37154726e-6f, 1.1863972e-4f, -6.36269951e-4f, 1.67302832e-3f, -1.66063527e-4f,
                                  -1.91502313e-2f, 1.02777153e-1f, 6.36619442e-1f, 1.28379167e-1f);
        return library::copysign(-expm1_in_range(-fused(p, t, t)), x);
    } else {
        const T near = polynomial<T>(x * x, 5.958930743134941219e-11, -1.137390229643091163e-9, 1.466005199839484768e-8,
                                     -1.635035446195965564e-7, 1.646100448096203468e-6, -0.00001492559551950604345,
                                     0.0001205533112229926526, -0.0008548326981129665996, 0.005223977624823222568,
                                     -0.0268661706450773342, 0.1128379167095488157, -0.3761263890318374812,
                                     0.128379167095512574);
        const T far = polynomial<T>(t, -1.030526776573548272e-12, 4.71583644479030717e-11, -1.01002966023603503e-9,
                                    1.34374285062038651e-8, -1.241215285847385194e-7, 8.408311407248583166e-7,
                                    -4.281343903433636793e-6, 0.00001634687915809748777, -0.0000445547846718671522,
                                    0.00006925667315525886626, 0.00004686017322407553356, -0.0006441519087521293656,
                                    0.001772444134358939271, -0.0002835929041251134005, -0.01907602064742056126,
                                    0.1027461711943932826, 0.6366288685878174223, 1.128377246712498365, 1.879843770971557492e-7);
        return size < T(1) ? fused(near, x, x) : library::copysign(T(1) - exp_in_range(-far), x);
    }
}

}  // namespace precast
