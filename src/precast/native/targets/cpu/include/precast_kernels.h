// What generated loops use: element types, and the operations of loop IR by name.
#pragma once

#include "precast_groups.h"
#include "precast_half.h"
#include "precast_math.h"
#include "precast_random.h"
#include "precast_special.h"
#include "precast_tiles.h"

namespace precast {

// The nearest bfloat16, ties to even; NaN keeps a set bit.
inline float rounded(float value) {
    const uint32_t raw = to_bits(value), nearest = (raw + 0x7fffu + ((raw >> 16) & 1u)) & 0xffff0000u;
    return from_bits<float>(value != value ? 0x7fc00000u : nearest);
}

struct bfloat16 {
    uint16_t bits;
    bfloat16() = default;
    explicit bfloat16(float value) : bits(static_cast<uint16_t>(to_bits(rounded(value)) >> 16)) {}
    operator float() const { return from_bits<float>(static_cast<uint32_t>(bits) << 16); }
};

// For a number that is already a bfloat16.
inline bfloat16 truncated(float value) {
    bfloat16 result;
    result.bits = static_cast<uint16_t>(to_bits(value) >> 16);
    return result;
}

#if defined(PRECAST_HAS_HALF_CONVERSIONS)
// The nearest float16, ties to even.
inline float rounded_half(float value) { return precast_rounded(value); }
inline uint16_t nearest_half_bits(float value) { return static_cast<uint16_t>(precast_narrowed(value)); }
inline uint16_t half_bits(float value) { return nearest_half_bits(value); }
#else
// The same with integers: 11 digits, fewer below 2⁻¹⁴, infinity from 2¹⁶ on.
inline float rounded_half(float value) {
    const uint32_t raw = to_bits(value), size = raw & 0x7fffffffu;
    const uint32_t nearest = (size + 0xfffu + ((size >> 13) & 1u)) & 0xffffe000u;
    const uint32_t usual = nearest >= 0x47800000u ? 0x7f800000u : nearest;
    // Between a half and 1, the last place equals that of the smallest numbers.
    const uint32_t small = to_bits((from_bits<float>(size) + 0.5f) - 0.5f);
    const uint32_t number = size < 0x38800000u ? small : usual;
    return from_bits<float>((size > 0x7f800000u ? 0x7fc00000u : number) | (raw & 0x80000000u));
}
// For a number that is already a float16.
inline uint16_t half_bits(float value) {
    const uint32_t raw = to_bits(value), size = raw & 0x7fffffffu;
    const uint32_t usual = (size - 0x38000000u) >> 13, small = to_bits(from_bits<float>(size) + 0.5f) - 0x3f000000u;
    const uint32_t special = size > 0x7f800000u ? 0x7e00u : 0x7c00u;
    const uint32_t number = size >= 0x7f800000u ? special : size < 0x38800000u ? small : usual;
    return static_cast<uint16_t>(number | (raw >> 16 & 0x8000u));
}
inline uint16_t nearest_half_bits(float value) { return half_bits(rounded_half(value)); }
#endif

// Sign and mantissa are shifted together, and the exponent is adjusted by a product, which also handles subnormals; infinity
// and NaN, which then are the numbers from 2¹⁶ on, get the largest exponent.
inline float widened_half(uint16_t bits) {
    const uint32_t placed = static_cast<uint32_t>(static_cast<int16_t>(bits)) << 13 & 0x8fffe000u;
    const float value = from_bits<float>(placed) * 0x1p112f;
    return from_bits<float>(to_bits(value) | (value * value >= 0x1p32f ? 0x7f800000u : 0u));
}

struct float16 {
    uint16_t bits;
    float16() = default;
    explicit float16(float value) : bits(nearest_half_bits(value)) {}
    operator float() const { return widened_half(bits); }
};

// For a number that is already a float16, and for any. GCC does not vectorize loops with constructors.
inline float16 truncated_half(float value) {
    float16 result;
    result.bits = half_bits(value);
    return result;
}
inline float16 nearest_half(float value) {
    float16 result;
    result.bits = nearest_half_bits(value);
    return result;
}

template <class T>
constexpr T infinity = std::numeric_limits<T>::infinity();
template <class T>
constexpr T not_a_number = std::numeric_limits<T>::quiet_NaN();
template <class T>
constexpr bool is_float = std::is_floating_point_v<T>;

template <class To, class From>
inline To cast(From value) {
    if constexpr (std::is_same_v<To, bool>) return value != From(0);
    // GCC vectorizes a select, but not a conversion from bool.
    else if constexpr (std::is_same_v<From, bool> && is_float<To>) return value ? To(1) : To(0);
    else if constexpr (std::is_same_v<To, bfloat16> || std::is_same_v<To, float16>) return To(static_cast<float>(value));
    else if constexpr (std::is_same_v<From, bfloat16> || std::is_same_v<From, float16>)
        return static_cast<To>(static_cast<float>(value));
    else return static_cast<To>(value);
}

// NaN propagates, as in torch.maximum and torch.minimum.
template <class T>
inline T maximum(T a, T b) {
    return (a >= b) | (a != a) ? a : b;
}
template <class T>
inline T minimum(T a, T b) {
    return (a <= b) | (a != a) ? a : b;
}

// 16-bit floats are combined in single precision and rounded each time, as in eager.
#define PRECAST_COMBINE(name, expression)             \
    template <class T>                                \
    inline T combine_##name(T there, T more) {        \
        const float a = static_cast<float>(there), b = static_cast<float>(more); \
        return T(expression);                         \
    }
PRECAST_COMBINE(sum, a + b)
PRECAST_COMBINE(prod, a* b)
PRECAST_COMBINE(max, maximum(a, b))
PRECAST_COMBINE(min, minimum(a, b))
#undef PRECAST_COMBINE

template <class T>
inline T abs(T x) {
    if constexpr (is_float<T>) return library::fabs(x);
    else if constexpr (std::is_signed_v<T>) return x < 0 ? static_cast<T>(-x) : x;
    else return x;
}
template <class T>
inline T sign(T x) {
    return static_cast<T>((x > T(0)) - (x < T(0)));
}
template <class T>
inline T reciprocal(T x) {
    return T(1) / x;
}
template <class T>
inline T rsqrt(T x) {
    return T(1) / library::sqrt(x);
}
template <class T>
inline T bitwise_not(T x) {
    if constexpr (std::is_same_v<T, bool>) return !x;
    else return static_cast<T>(~x);
}
template <class T>
inline bool is_nan(T x) {
    return x != x;
}
template <class T>
inline bool is_inf(T x) {
    if constexpr (is_float<T>) return library::fabs(x) == infinity<T>;
    else return false;
}

// One step of a long division: the remainder loses as many digits as a double has, and is exact.
inline double rest_after(double rest, double divisor, double inverse) {
    return fused(-library::nearbyint(rest * inverse), divisor, rest);
}
// Equals the C library's, which is not vectorized. Six steps suffice for the largest float by the smallest.
inline float fmod_single(float a, float b) {
    const double divisor = static_cast<double>(library::fabs(b)), inverse = 1.0 / divisor;
    double rest = rest_after(static_cast<double>(library::fabs(a)), divisor, inverse);
    rest = rest_after(rest_after(rest, divisor, inverse), divisor, inverse);
    rest = rest_after(rest_after(rest_after(rest, divisor, inverse), divisor, inverse), divisor, inverse);
    const float found = static_cast<float>(rest < 0.0 ? rest + divisor : rest);
    const bool is_less = (library::fabs(b) == infinity<float>) & (library::fabs(a) < infinity<float>);
    return library::copysign(is_less ? a : found, a);
}

// Integer division by zero returns 0 here; eager raises.
template <class T>
inline T fmod(T a, T b) {
    if constexpr (std::is_same_v<T, float>) return fmod_single(a, b);
    else if constexpr (is_float<T>) return library::fmod(a, b);
    else {
        if (b == 0) return 0;
        if constexpr (std::is_signed_v<T>)
            if (b == T(-1)) return 0;
        return static_cast<T>(a % b);
    }
}
template <class T>
inline T div_floor(T a, T b) {
    if constexpr (is_float<T>) {
        // As in Python: the remainder takes the divisor's sign, and the quotient is the rounded rest.
        const T rest = fmod(a, b);
        T quotient = (a - rest) / b;
        quotient = (rest != T(0)) & ((b < T(0)) != (rest < T(0))) ? quotient - T(1) : quotient;
        const T whole = library::floor(quotient);
        const T rounded = quotient - whole > T(0.5) ? whole + T(1) : whole;
        return b == T(0) ? a / b : (quotient == T(0) ? library::copysign(T(0), a / b) : rounded);
    } else {
        if (b == 0) return 0;
        if constexpr (std::is_signed_v<T>)
            if (b == T(-1)) return static_cast<T>(-a);
        const T quotient = static_cast<T>(a / b);
        return static_cast<T>(quotient - ((a % b != 0) & ((a < 0) != (b < 0))));
    }
}
template <class T>
inline T div_trunc(T a, T b) {
    if constexpr (is_float<T>) return library::trunc(a / b);
    else if (b == 0) return 0;
    else {
        if constexpr (std::is_signed_v<T>)
            if (b == T(-1)) return static_cast<T>(-a);
        return static_cast<T>(a / b);
    }
}
template <class T>
inline T remainder(T a, T b) {
    const T rest = fmod(a, b);
    return (rest != T(0)) & ((rest < T(0)) != (b < T(0))) ? static_cast<T>(rest + b) : rest;
}

template <class T>
inline T pow(T base, T exponent) {
    if constexpr (is_float<T>) return library::pow(base, exponent);
    else {
        if constexpr (std::is_signed_v<T>)
            if (exponent < 0) return base == T(1) ? T(1) : (base == T(-1) ? (exponent % 2 ? T(-1) : T(1)) : T(0));
        T result = 1;
        for (; exponent; exponent = static_cast<T>(exponent / 2), base = static_cast<T>(base * base))
            if (exponent % 2) result = static_cast<T>(result * base);
        return result;
    }
}
template <class T>
inline T left_shift(T a, T b) {
    const bool is_out = (b < T(0)) | (b >= T(sizeof(T) * 8));
    return is_out ? T(0) : static_cast<T>(static_cast<std::make_unsigned_t<T>>(a) << b);
}
template <class T>
inline T right_shift(T a, T b) {
    const bool is_out = (b < T(0)) | (b >= T(sizeof(T) * 8));
    const T all_sign = a < T(0) ? static_cast<T>(-1) : T(0);
    return is_out ? all_sign : static_cast<T>(a >> b);
}

// The series for large x, after recurrence up to there; reflection for negative x.
template <class T>
inline T digamma(T x) {
    constexpr double pi = 3.14159265358979323846;
    double value = static_cast<double>(x), result = 0;
    if (value == 0) return library::copysign(infinity<T>, -x);
    if (value < 0) {
        if (value == library::floor(value)) return not_a_number<T>;
        // The difference from the nearest integer towards zero is exact.
        result = -pi / library::tan(pi * (value - library::trunc(value)));
        value = 1 - value;
    }
    for (; value < 10; value += 1) result -= 1 / value;
    const double z = 1 / (value * value);
    const double series = polynomial(z, 1. / 12, -691. / 32760, 1. / 132, -1. / 240, 1. / 252, -1. / 120, 1. / 12) * z;
    return static_cast<T>(result + library::log(value) - 0.5 / value - series);
}

// Its derivative, computed as in eager: in the type itself, and with a sine that is not quite 0 at the poles.
template <class T>
inline T trigamma(T x) {
    constexpr T pi = T(3.14159265358979323846);
    const bool is_reflected = x < T(0.5);
    const T sine = library::sin(pi * x);
    T total = is_reflected ? -(pi * pi) / (sine * sine) : T(0), at = is_reflected ? T(1) - x : x;
    for (int step = 0; step < 6; ++step, at += T(1)) total += T(1) / (at * at);
    const T z = T(1) / (at * at);
    total += (T(1) + T(0.5) / at + z * (T(1. / 6) - z * (T(1. / 30) - z * T(1. / 42)))) / at;
    return is_reflected ? -total : total;
}

#define PRECAST_FROM_C_LIBRARY(name)  \
    template <class T>                \
    inline T name(T x) {              \
        return library::name(x);          \
    }
PRECAST_FROM_C_LIBRARY(acos)
PRECAST_FROM_C_LIBRARY(acosh)
PRECAST_FROM_C_LIBRARY(asin)
PRECAST_FROM_C_LIBRARY(asinh)
PRECAST_FROM_C_LIBRARY(atan)
PRECAST_FROM_C_LIBRARY(atanh)
PRECAST_FROM_C_LIBRARY(cosh)
PRECAST_FROM_C_LIBRARY(erfc)
PRECAST_FROM_C_LIBRARY(lgamma)
PRECAST_FROM_C_LIBRARY(log10)
PRECAST_FROM_C_LIBRARY(log2)
PRECAST_FROM_C_LIBRARY(sinh)
PRECAST_FROM_C_LIBRARY(sqrt)
PRECAST_FROM_C_LIBRARY(tan)
#undef PRECAST_FROM_C_LIBRARY

// Integers are their own floor, ceiling, and so on.
#define PRECAST_ROUNDING(name, function)              \
    template <class T>                                \
    inline T name(T x) {                              \
        if constexpr (is_float<T>) return library::function(x); \
        else return x;                                \
    }
PRECAST_ROUNDING(floor, floor)
PRECAST_ROUNDING(ceil, ceil)
PRECAST_ROUNDING(trunc, trunc)
PRECAST_ROUNDING(round, nearbyint)
#undef PRECAST_ROUNDING

// The same number, hidden from the compiler's analysis.
inline int64_t opaque(int64_t value) {
    asm("" : "+r"(value));
    return value;
}

inline int64_t floor_divide(int64_t a, int64_t b) { return a / b - ((a % b != 0) & ((a < 0) != (b < 0))); }
inline int64_t floor_remainder(int64_t a, int64_t b) { return a - b * floor_divide(a, b); }

}  // namespace precast
