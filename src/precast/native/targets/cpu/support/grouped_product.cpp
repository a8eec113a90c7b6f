// Products of groups of rows, each group by a matrix of its own.
//
// Inputs: left, right, and the end of each group of rows. Output: for rows by matrices, rows (zeros if they are in no group);
// for rows by rows, a matrix for each group. Numbers: whether it is the latter.
#include <algorithm>
#include <cstring>

#include "context.h"

namespace precast {

int32_t matmul(context* context, const strided* inputs, const strided* outputs, const int64_t* numbers, const epilogue& epilogue);

namespace {

strided part_of(const strided& whole, int dim, int64_t start, int64_t size) {
    strided part = whole;
    part.data = static_cast<char*>(whole.data) + start * whole.strides[dim] * (whole.dtype.bits / 8);
    part.sizes[dim] = size;
    part.is_constant = false;
    return part;
}

// One of the matrices.
strided matrix_of(const strided& whole, int64_t number) {
    strided part = part_of(whole, 0, number, 1);
    part.rank = whole.rank - 1;
    for (int dim = 0; dim < part.rank; ++dim) {
        part.sizes[dim] = whole.sizes[dim + 1];
        part.strides[dim] = whole.strides[dim + 1];
    }
    return part;
}

strided turned(const strided& matrix) {
    strided result = matrix;
    std::swap(result.sizes[0], result.sizes[1]);
    std::swap(result.strides[0], result.strides[1]);
    return result;
}

// Results are dense.
void clear(const strided& result) {
    int64_t count = 1;
    for (int dim = 0; dim < result.rank; ++dim) count *= result.sizes[dim];
    std::memset(result.data, 0, static_cast<size_t>(count * (result.dtype.bits / 8)));
}

int64_t end_of(const strided& ends, int64_t group) {
    const int64_t at = group * ends.strides[0];
    return ends.dtype.bits == 32 ? static_cast<const int32_t*>(ends.data)[at] : static_cast<const int64_t*>(ends.data)[at];
}

}  // namespace

int32_t grouped_product(context* context, const strided* inputs, const strided* outputs, const int64_t* numbers) {
    const strided &left = inputs[0], &right = inputs[1], &ends = inputs[2], &result = outputs[0];
    const bool is_sum = numbers[0] != 0;
    const int64_t rows = left.sizes[0];
    clear(result);
    for (int64_t group = 0, start = 0; group < ends.sizes[0]; ++group) {
        const int64_t end = end_of(ends, group);
        if (end < start || end > rows) return fail(PRECAST_FAILED, "a group of rows ends at %lld, of %lld", static_cast<long long>(end), static_cast<long long>(rows));
        if (end == start) continue;
        const strided mine = part_of(left, 0, start, end - start);
        const strided operands[2] = {is_sum ? turned(mine) : mine, is_sum ? part_of(right, 0, start, end - start) : matrix_of(right, group)};
        const strided target = is_sum ? matrix_of(result, group) : part_of(result, 0, start, end - start);
        if (const auto status = matmul(context, operands, &target, nullptr, {nullptr, 0})) return status;
        start = end;
    }
    return PRECAST_OK;
}

}  // namespace precast
