// Quantized weights, read from memory and dequantized in registers, a block of numbers at a time.
//
// A block of 4-bit codes has the low halves of its bytes first and then the high ones: numbers 0, 2, 4, … and 1, 3, 5, … The other
// operand is put in the same order once (`arrange`).
#pragma once

#include "blocks.h"

namespace precast {

typedef int32_t whole_vector __attribute__((vector_size(vector_lanes * 4)));

// As many bytes as a vector has lanes. Compilers have a conversion for this, but do it lane by lane.
template <class Byte>
whole_vector widen_bytes(const uint8_t* from) {
    constexpr bool is_signed = std::is_signed<Byte>::value;
#if defined(__AVX512F__)
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
    return reinterpret_cast<whole_vector>(is_signed ? _mm512_cvtepi8_epi32(bytes) : _mm512_cvtepu8_epi32(bytes));
#elif defined(__AVX2__) && defined(__FMA__)
    const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from));
    return reinterpret_cast<whole_vector>(is_signed ? _mm256_cvtepi8_epi32(bytes) : _mm256_cvtepu8_epi32(bytes));
#else
    whole_vector numbers;
    for (int64_t each = 0; each < vector_lanes; ++each) numbers[each] = static_cast<Byte>(from[each]);
    return numbers;
#endif
}
inline float_vector as_floats(whole_vector numbers) { return __builtin_convertvector(numbers, float_vector); }

// `has_zero`: whether a zero point, that of the group, is subtracted from codes.
template <class Byte, bool has_zero>
struct byte_codes {
    static constexpr int vectors = 1;
    static constexpr int64_t block = vector_lanes, bytes = vector_lanes;

    float_vector zero;
    explicit byte_codes(float zero_point) : zero(same_in_all(zero_point)) {}

    void read(const uint8_t* from, float_vector (&numbers)[vectors]) const {
        const float_vector codes = as_floats(widen_bytes<Byte>(from));
        numbers[0] = has_zero ? codes - zero : codes;
    }
    static void arrange(float*, const float*) {}
};

// Not codes, but floats without their lower half.
struct bfloat_codes {
    static constexpr int vectors = 1;
    static constexpr int64_t block = vector_lanes, bytes = 2 * vector_lanes;

    explicit bfloat_codes(float) {}
    void read(const uint8_t* from, float_vector (&numbers)[vectors]) const {
#if defined(__AVX512F__)
        const auto bits = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
        numbers[0] = reinterpret_cast<float_vector>(_mm512_slli_epi32(bits, 16));
#elif defined(__AVX2__) && defined(__FMA__)
        const auto bits = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
        numbers[0] = reinterpret_cast<float_vector>(_mm256_slli_epi32(bits, 16));
#else
        for (int64_t each = 0; each < vector_lanes; ++each) {
            uint16_t half;
            std::memcpy(&half, from + 2 * each, sizeof half);
            numbers[0][each] = from_bits<float>(static_cast<uint32_t>(half) << 16);
        }
#endif
    }
    static void arrange(float*, const float*) {}
};

struct half_byte_codes {
    static constexpr int vectors = 2;
    static constexpr int64_t block = 2 * vector_lanes, bytes = vector_lanes;

#if defined(__AVX512F__)
    // All sixteen values of a code, looked up by its lowest four bits.
    float_vector meanings;
    explicit half_byte_codes(float zero_point)
        : meanings(float_vector{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15} - zero_point) {}
    void read(const uint8_t* from, float_vector (&numbers)[vectors]) const {
        const auto both = reinterpret_cast<__m512i>(widen_bytes<uint8_t>(from));
        const auto table = reinterpret_cast<__m512>(meanings);
        numbers[0] = reinterpret_cast<float_vector>(_mm512_permutexvar_ps(both, table));
        numbers[1] = reinterpret_cast<float_vector>(_mm512_permutexvar_ps(_mm512_srli_epi32(both, 4), table));
    }
#else
    float_vector zero;
    explicit half_byte_codes(float zero_point) : zero(same_in_all(zero_point)) {}
    void read(const uint8_t* from, float_vector (&numbers)[vectors]) const {
        const whole_vector both = widen_bytes<uint8_t>(from);
        numbers[0] = as_floats(both & 15) - zero;
        numbers[1] = as_floats(both >> 4) - zero;
    }
#endif
    static void arrange(float* to, const float* from) {
        for (int64_t each = 0; each < vector_lanes; ++each) {
            to[each] = from[2 * each];
            to[vector_lanes + each] = from[2 * each + 1];
        }
    }
};

// A matrix of codes with its scales: column n of the product is by (codes[n] - zeros[n]) * scales[n], where each group of
// `group` codes in a column has its own scale and zero point; unless there is only one, groups are whole blocks.
struct quantized_weights {
    const uint8_t* codes;
    int64_t step, group, groups;  // `step` bytes from column to column
    const strided *scales, *zeros;
    float zero;

    // The numbers of a column's groups, in place or in `line`.
    static const float* line_of(const strided& operand, int64_t column, int64_t count, float* line) {
        const int64_t start = column * operand.strides[0], step = operand.strides[1];
        if (operand.is_single() && (step == 1 || count == 1)) return static_cast<const float*>(operand.data) + start;
        if (operand.dtype.bits != 8) read_line(operand, start, step, count, line);
        else if (operand.dtype.code == 0) widen_line(static_cast<const int8_t*>(operand.data) + start, step, count, line);
        else widen_line(static_cast<const uint8_t*>(operand.data) + start, step, count, line);
        return line;
    }
};

// Some columns' scales and zero points, group by group; `memory` has room for both of each.
template <int columns>
struct column_facts {
    const float *scales[columns], *zeros[columns];
    int64_t zero_step;

    column_facts(const quantized_weights& weights, int64_t first, float* memory) : zero_step(weights.zeros != nullptr) {
        static constexpr float one = 1;
        for (int each = 0; each < columns; ++each) {
            float* lines = memory + 2 * each * weights.groups;
            scales[each] = weights.scales ? weights.line_of(*weights.scales, first + each, weights.groups, lines) : &one;
            zeros[each] = weights.zeros ? weights.line_of(*weights.zeros, first + each, weights.groups, lines + weights.groups) : &weights.zero;
        }
    }
    float zero(int column, int64_t group) const { return zeros[column][group * zero_step]; }
};

}  // namespace precast
