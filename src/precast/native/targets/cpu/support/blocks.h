// Products of matrices in a core's cache, for routines that do more with them than multiply.
//
// The right operand is packed into panels: `panel` contiguous columns, row after row, the last panel padded with zeros.
#pragma once

#include <type_traits>

#include "elements.h"
#include "precast_tiles.h"
#include "vectors.h"

namespace precast {

constexpr int wide_vectors = vector_lanes == 16 ? 4 : 2;
constexpr int64_t panel = vector_lanes * wide_vectors;

// Rows of a tile: as many as there are registers for its sums.
constexpr int strip_of(int vectors) { return vectors == wide_vectors ? 6 : 12; }

// The left operand may have any strides; its elements are read one by one.
struct left_matrix {
    const float* data;
    int64_t row_step, step;
};

// A few rows of the result, all in registers; the first ones may be `known` and are not written. Existing values are added last:
// sums of blocks are more precise than one long sum.
template <int rows, int vectors>
void multiply_tile(left_matrix left, const float* right, int64_t right_row, float* result, int64_t result_row, int64_t depth, bool adds,
                   int64_t known = 0) {
    float_vector sums[rows][vectors] = {};
    // Three rows share a pointer, since an address may include twice a stride: there are fewer registers than rows.
    constexpr int pointers = (rows + 2) / 3;
    const float* from[pointers];
    for (int each = 0; each < pointers; ++each) from[each] = left.data + 3 * each * left.row_step;
    for (int64_t k = 0; k < depth; ++k) {
        float_vector line[vectors];
#pragma GCC unroll 8
        for (int each = 0; each < vectors; ++each) line[each] = load_vector(right + k * right_row + each * vector_lanes);
#pragma GCC unroll 12
        for (int row = 0; row < rows; ++row) {
            const float_vector factor = same_in_all(from[row / 3][row % 3 * left.row_step]);
#pragma GCC unroll 8
            for (int each = 0; each < vectors; ++each) sums[row][each] = multiply_add(factor, line[each], sums[row][each]);
        }
        for (int each = 0; each < pointers; ++each) from[each] += left.step;
    }
#pragma GCC unroll 12
    for (int row = 0; row < rows; ++row) {
        if (row < known) continue;
#pragma GCC unroll 8
        for (int each = 0; each < vectors; ++each) {
            float* place = result + row * result_row + each * vector_lanes;
            store_vector(place, adds ? load_vector(place) + sums[row][each] : sums[row][each]);
        }
    }
}

template <int vectors>
void multiply_column(int64_t rows, left_matrix left, const float* right, int64_t right_row, float* result, int64_t result_row, int64_t depth,
                     bool adds) {
    constexpr int strip = strip_of(vectors);
    const auto tile = [&](auto size, int64_t row, int64_t known) {
        multiply_tile<size, vectors>({left.data + row * left.row_step, left.row_step, left.step}, right, right_row, result + row * result_row,
                                     result_row, depth, adds, known);
    };
    int64_t row = 0;
    for (; row + strip <= rows; row += strip) tile(std::integral_constant<int, strip>(), row, 0);
    // The remaining rows are computed together with rows before them: a tile of one row takes nearly as long as one of many.
    if (row && row < rows) tile(std::integral_constant<int, strip>(), rows - strip, strip - (rows - row));
    if (!row)
        for (; row < rows; ++row) tile(std::integral_constant<int, 1>(), row, 0);
}

// result (+)= left right, where `columns` is a whole number of vectors and `right_row` is the row stride of `right`.
inline void multiply_block(int64_t rows, int64_t columns, int64_t depth, left_matrix left, const float* right, int64_t right_row, float* result,
                           int64_t result_row, bool adds) {
    int64_t column = 0;
    for (; column + panel <= columns; column += panel)
        multiply_column<wide_vectors>(rows, left, right + column, right_row, result + column, result_row, depth, adds);
    for (; wide_vectors > 2 && column + 2 * vector_lanes <= columns; column += 2 * vector_lanes)
        multiply_column<2>(rows, left, right + column, right_row, result + column, result_row, depth, adds);
    for (; column < columns; column += vector_lanes)
        multiply_column<1>(rows, left, right + column, right_row, result + column, result_row, depth, adds);
}

// Rows are short: calling memcpy takes longer than copying.
inline void copy_line(const float* from, float* to, int64_t count) {
    int64_t each = 0;
    for (; each + vector_lanes <= count; each += vector_lanes) store_vector(to + each, load_vector(from + each));
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
