// Vectors of floats as wide as this processor's registers, for loops that compilers do not vectorize.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__AVX512F__) || (defined(__AVX2__) && defined(__FMA__))
#include <immintrin.h>
#endif

namespace precast {

#if defined(__AVX512F__)
constexpr int64_t vector_lanes = 16;
constexpr bool has_vectors = true;
#elif defined(__AVX2__) && defined(__FMA__)
constexpr int64_t vector_lanes = 8;
constexpr bool has_vectors = true;
#else
constexpr int64_t vector_lanes = 8;
constexpr bool has_vectors = false;
#endif

typedef float float_vector __attribute__((vector_size(vector_lanes * sizeof(float))));

inline float_vector load_vector(const float* from) {
    float_vector value;
    std::memcpy(&value, from, sizeof value);
    return value;
}
// For a value that is used several times: compilers tend to reload it from memory each time, which is slower.
inline float_vector in_register(float_vector value) {
#if defined(__AVX512F__)
    asm("" : "+v"(value));
#elif defined(__AVX2__) && defined(__FMA__)
    asm("" : "+x"(value));
#endif
    return value;
}
inline void store_vector(float* to, float_vector value) { std::memcpy(to, &value, sizeof value); }
// The first `count` lanes; the others are 0.
inline float_vector load_lanes(const float* from, int64_t count) {
#if defined(__AVX512F__)
    return reinterpret_cast<float_vector>(_mm512_maskz_loadu_ps(static_cast<__mmask16>((1u << count) - 1), from));
#else
    if (count == vector_lanes) return load_vector(from);
    float_vector value = {};
    std::memcpy(&value, from, static_cast<size_t>(count) * sizeof(float));
    return value;
#endif
}
inline void store_lanes(float* to, float_vector value, int64_t count) {
#if defined(__AVX512F__)
    _mm512_mask_storeu_ps(to, static_cast<__mmask16>((1u << count) - 1), reinterpret_cast<__m512>(value));
#else
    if (count == vector_lanes) return store_vector(to, value);
    std::memcpy(to, &value, static_cast<size_t>(count) * sizeof(float));
#endif
}
// The first `count` lanes of one vector, the others of another.
inline float_vector joined(float_vector first, int64_t count, float_vector rest) {
#if defined(__AVX512F__)
    return reinterpret_cast<float_vector>(_mm512_mask_blend_ps(static_cast<__mmask16>((1u << count) - 1), reinterpret_cast<__m512>(rest),
                                                               reinterpret_cast<__m512>(first)));
#else
    std::memcpy(&rest, &first, static_cast<size_t>(count) * sizeof(float));
    return rest;
#endif
}
// Subtracting 0 preserves −0, adding it would not.
inline float_vector same_in_all(float value) { return value - float_vector{}; }

// NaN propagates.
inline float_vector at_least(float_vector value, float_vector low) { return value < low ? low : value; }
inline float_vector at_most(float_vector value, float_vector high) { return value > high ? high : value; }

// a * b + c, rounded once.
inline float_vector multiply_add(float_vector a, float_vector b, float_vector c) {
#if defined(__AVX512F__)
    return reinterpret_cast<float_vector>(
        _mm512_fmadd_ps(reinterpret_cast<__m512>(a), reinterpret_cast<__m512>(b), reinterpret_cast<__m512>(c)));
#elif defined(__AVX2__) && defined(__FMA__)
    return reinterpret_cast<float_vector>(
        _mm256_fmadd_ps(reinterpret_cast<__m256>(a), reinterpret_cast<__m256>(b), reinterpret_cast<__m256>(c)));
#else
    return a * b + c;
#endif
}

inline float sum_of(float_vector values) {
#if defined(__AVX512F__)
    return _mm512_reduce_add_ps(reinterpret_cast<__m512>(values));
#else
    float total = 0;
    for (int64_t each = 0; each < vector_lanes; ++each) total += values[each];
    return total;
#endif
}

inline float largest_of(float_vector values) {
#if defined(__AVX512F__)
    return _mm512_reduce_max_ps(reinterpret_cast<__m512>(values));
#else
    float largest = values[0];
    for (int64_t each = 1; each < vector_lanes; ++each) largest = values[each] > largest ? values[each] : largest;
    return largest;
#endif
}

inline int64_t rounded_up(int64_t count, int64_t unit) { return (count + unit - 1) / unit * unit; }

}  // namespace precast
