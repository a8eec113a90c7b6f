// Products of matrices that lie in a core's cache, for routines that do more with them than multiply.
//
// The right operand lies in panels: `panel` columns side by side, row after row, the last panel filled up with zeros.
#pragma once

#include <cstdint>
#include <cstring>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "precast_host.h"
#include "precast_kernels.h"

namespace precast {

#if defined(__AVX512F__)
constexpr int64_t lanes = 16;
constexpr int wide_vectors = 4;
#else
constexpr int64_t lanes = 8;
constexpr int wide_vectors = 2;
#endif
constexpr int64_t panel = lanes * wide_vectors, strip = 6;

typedef float lane_vector __attribute__((vector_size(lanes * sizeof(float))));

inline lane_vector multiply_add(lane_vector a, lane_vector b, lane_vector c) {
#if defined(__AVX512F__)
    return _mm512_fmadd_ps(a, b, c);
#elif defined(__FMA__)
    return _mm256_fmadd_ps(a, b, c);
#else
    return a * b + c;
#endif
}

inline float sum_of(lane_vector values) {
#if defined(__AVX512F__)
    return _mm512_reduce_add_ps(values);
#else
    float total = 0;
    for (int64_t each = 0; each < lanes; ++each) total += values[each];
    return total;
#endif
}

inline float largest_of(lane_vector values) {
#if defined(__AVX512F__)
    return _mm512_reduce_max_ps(values);
#else
    float largest = values[0];
    for (int64_t each = 1; each < lanes; ++each) largest = values[each] > largest ? values[each] : largest;
    return largest;
#endif
}

inline lane_vector vector_at(const float* place) {
    lane_vector values;
    std::memcpy(&values, place, sizeof values);
    return values;
}

inline int64_t rounded_up(int64_t count, int64_t unit) { return (count + unit - 1) / unit * unit; }

// The left operand may be walked in any direction; its elements are read one by one.
struct left_matrix {
    const float* data;
    int64_t row_step, step;
};

// A few rows of the result, all in registers. What is there is added last: sums of blocks keep more digits than one long sum.
template <int rows, int vectors>
void multiply_tile(left_matrix left, const float* right, int64_t right_row, float* result, int64_t result_row, int64_t depth, bool adds) {
    lane_vector sums[rows][vectors] = {};
    for (int64_t k = 0; k < depth; ++k) {
        lane_vector line[vectors];
#pragma GCC unroll 8
        for (int each = 0; each < vectors; ++each) std::memcpy(&line[each], right + k * right_row + each * lanes, sizeof(lane_vector));
#pragma GCC unroll 8
        for (int row = 0; row < rows; ++row) {
            const lane_vector factor = left.data[row * left.row_step + k * left.step] - lane_vector{};
#pragma GCC unroll 8
            for (int each = 0; each < vectors; ++each) sums[row][each] = multiply_add(factor, line[each], sums[row][each]);
        }
    }
#pragma GCC unroll 8
    for (int row = 0; row < rows; ++row)
#pragma GCC unroll 8
        for (int each = 0; each < vectors; ++each) {
            float* place = result + row * result_row + each * lanes;
            lane_vector there = {};
            if (adds) std::memcpy(&there, place, sizeof there);
            there += sums[row][each];
            std::memcpy(place, &there, sizeof there);
        }
}

template <int vectors>
void multiply_column(int64_t rows, left_matrix left, const float* right, int64_t right_row, float* result, int64_t result_row, int64_t depth,
                     bool adds) {
    int64_t row = 0;
    const auto from = [&](int64_t first) { return left_matrix{left.data + first * left.row_step, left.row_step, left.step}; };
    for (; row + strip <= rows; row += strip)
        multiply_tile<strip, vectors>(from(row), right, right_row, result + row * result_row, result_row, depth, adds);
    for (; row < rows; ++row) multiply_tile<1, vectors>(from(row), right, right_row, result + row * result_row, result_row, depth, adds);
}

// result (+)= left right, where `columns` is a whole number of vectors and the rows of `right` lie `right_row` apart.
inline void multiply_block(int64_t rows, int64_t columns, int64_t depth, left_matrix left, const float* right, int64_t right_row, float* result,
                           int64_t result_row, bool adds) {
    int64_t column = 0;
    for (; column + panel <= columns; column += panel)
        multiply_column<wide_vectors>(rows, left, right + column, right_row, result + column, result_row, depth, adds);
    for (; column < columns; column += lanes)
        multiply_column<1>(rows, left, right + column, right_row, result + column, result_row, depth, adds);
}

// A square of lines with rows and columns swapped: rounds of taking every other element of two lines.
inline void transpose(lane_vector (&lines)[lanes]) {
    typedef int32_t choice __attribute__((vector_size(lanes * sizeof(float))));
    choice low, high;
    for (int64_t each = 0; each < lanes; ++each) {
        low[each] = static_cast<int32_t>(each / 2 + each % 2 * lanes);
        high[each] = static_cast<int32_t>(low[each] + lanes / 2);
    }
    for (int64_t round = 1; round < lanes; round *= 2) {
        lane_vector next[lanes];
        for (int64_t each = 0; each < lanes / 2; ++each) {
#if defined(__clang__)
            for (int64_t lane = 0; lane < lanes; ++lane) {
                const auto &even = lines[each], &odd = lines[each + lanes / 2];
                next[2 * each][lane] = lane % 2 ? odd[lane / 2] : even[lane / 2];
                next[2 * each + 1][lane] = lane % 2 ? odd[(lane + lanes) / 2] : even[(lane + lanes) / 2];
            }
#else
            next[2 * each] = __builtin_shuffle(lines[each], lines[each + lanes / 2], low);
            next[2 * each + 1] = __builtin_shuffle(lines[each], lines[each + lanes / 2], high);
#endif
        }
        std::memcpy(lines, next, sizeof next);
    }
}

// Elements of any floating type up to 32 bits, in single precision.
inline float single_of(const strided& tensor, int64_t place) {
    if (tensor.dtype.bits == 32) return static_cast<const float*>(tensor.data)[place];
    if (tensor.dtype.code == 4) return static_cast<float>(static_cast<const bfloat16*>(tensor.data)[place]);
    return static_cast<float>(static_cast<const float16*>(tensor.data)[place]);
}

// Rows are short: calling memcpy takes longer than copying.
inline void copy_line(const float* from, float* to, int64_t count) {
    int64_t each = 0;
    for (; each + lanes <= count; each += lanes) std::memcpy(to + each, from + each, sizeof(lane_vector));
    for (; each < count; ++each) to[each] = from[each];
}

template <class T>
void widen_line(const T* from, int64_t step, int64_t count, float* to) {
#pragma omp simd
    for (int64_t each = 0; each < count; ++each) to[each] = static_cast<float>(from[each * step]);
}

template <class T>
void narrow_line(const float* from, T* to, int64_t step, int64_t count) {
#pragma omp simd
    for (int64_t each = 0; each < count; ++each) to[each * step] = T(from[each]);
}

inline void read_line(const strided& from, int64_t start, int64_t step, int64_t count, float* to) {
    const auto* singles = static_cast<const float*>(from.data) + start;
    if (from.dtype.bits == 32) return step == 1 ? copy_line(singles, to, count) : widen_line(singles, step, count, to);
    if (from.dtype.code == 4) return widen_line(static_cast<const bfloat16*>(from.data) + start, step, count, to);
    widen_line(static_cast<const float16*>(from.data) + start, step, count, to);
}

inline void write_line(const float* from, const strided& to, int64_t start, int64_t step, int64_t count) {
    auto* singles = static_cast<float*>(to.data) + start;
    if (to.dtype.bits == 32) return step == 1 ? copy_line(from, singles, count) : narrow_line(from, singles, step, count);
    if (to.dtype.code == 4) return narrow_line(from, static_cast<bfloat16*>(to.data) + start, step, count);
    narrow_line(from, static_cast<float16*>(to.data) + start, step, count);
}

}  // namespace precast
