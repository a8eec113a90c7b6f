// GEMMs of any type with plain loops, a piece of the result at a time. Elements are read and written a line at a time by
// functions of their type: the multiplying loops are instantiated once per accumulator type.
#pragma once

#include <algorithm>

#include "precast_host.h"
#include "precast_kernels.h"

namespace precast {

template <class T, class Sum>
void read_line(const void* data, int64_t first, int64_t stride, int64_t count, Sum* line) {
    const T* from = static_cast<const T*>(data) + first;
    for (int64_t each = 0; each < count; ++each) line[each] = cast<Sum>(from[each * stride]);
}

template <class T, class Sum>
void write_line(const Sum* line, void* data, int64_t first, int64_t stride, int64_t count) {
    T* to = static_cast<T*>(data) + first;
    for (int64_t each = 0; each < count; ++each) to[each * stride] = cast<T>(line[each]);
}

// The start of matrix number `number` of a batch of any rank, by the sizes of the result's batch.
inline int64_t batch_offset(const strided& operand, const strided& result, int64_t number) {
    int64_t offset = 0;
    for (int dim = result.rank - 3; dim >= 0; --dim) {
        offset += number % result.sizes[dim] * operand.strides[dim];
        number /= result.sizes[dim];
    }
    return offset;
}

template <class Sum>
int32_t multiply_lines(const strided& left, const strided& right, const strided& result, decltype(&read_line<Sum, Sum>) read,
                       decltype(&write_line<Sum, Sum>) write) {
    constexpr int64_t height = 4, width = 256;
    const int row = result.rank - 2, column = result.rank - 1;
    const int64_t rows = result.sizes[row], columns = result.sizes[column], depth = left.sizes[column];
    int64_t batch = 1;
    for (int dim = 0; dim < row; ++dim) batch *= result.sizes[dim];
#pragma omp parallel for collapse(3) if (batch * rows * columns * depth > 65536)
    for (int64_t number = 0; number < batch; ++number) {
        for (int64_t top = 0; top < rows; top += height) {
            for (int64_t start = 0; start < columns; start += width) {
                const int64_t high = std::min(height, rows - top), wide = std::min(width, columns - start);
                const int64_t from_left = batch_offset(left, result, number) + top * left.strides[row];
                const int64_t from_right = batch_offset(right, result, number) + start * right.strides[column];
                const int64_t to = batch_offset(result, result, number) + top * result.strides[row] + start * result.strides[column];
                Sum sums[height][width] = {}, factors[height] = {}, line[width];
                for (int64_t step = 0; step < depth; ++step) {
                    read(left.data, from_left + step * left.strides[column], left.strides[row], high, factors);
                    read(right.data, from_right + step * right.strides[row], right.strides[column], wide, line);
                    for (int64_t i = 0; i < high; ++i)
                        for (int64_t j = 0; j < wide; ++j) sums[i][j] += factors[i] * line[j];
                }
                for (int64_t i = 0; i < high; ++i)
                    write(sums[i], result.data, to + i * result.strides[row], result.strides[column], wide);
            }
        }
    }
    return PRECAST_OK;
}

template <class T, class Sum>
int32_t multiply_plainly_as(const strided& left, const strided& right, const strided& result) {
    return multiply_lines<Sum>(left, right, result, read_line<T, Sum>, write_line<T, Sum>);
}

// Integers are accumulated in 64 bits, which wrap around to the same result. As in eager, bools support only empty
// sums, which are false.
inline int32_t multiply_plainly(const strided& left, const strided& right, const strided& result) {
    if (result.dtype.code == 6 && left.sizes[left.rank - 1] == 0) return multiply_plainly_as<uint8_t, int64_t>(left, right, result);
    switch (result.dtype.code * 256 + result.dtype.bits) {
        case 2 * 256 + 64: return multiply_plainly_as<double, double>(left, right, result);
        case 2 * 256 + 32: return multiply_plainly_as<float, float>(left, right, result);
        case 2 * 256 + 16: return multiply_plainly_as<float16, float>(left, right, result);
        case 4 * 256 + 16: return multiply_plainly_as<bfloat16, float>(left, right, result);
        case 64: return multiply_plainly_as<int64_t, int64_t>(left, right, result);
        case 32: return multiply_plainly_as<int32_t, int64_t>(left, right, result);
        case 16: return multiply_plainly_as<int16_t, int64_t>(left, right, result);
        case 8: return multiply_plainly_as<int8_t, int64_t>(left, right, result);
        case 256 + 8: return multiply_plainly_as<uint8_t, int64_t>(left, right, result);
    }
    return fail(PRECAST_FAILED, "no matrix product for dtype code %d with %d bits", result.dtype.code, result.dtype.bits);
}

}  // namespace precast
