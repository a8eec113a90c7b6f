// GEMMs of few rows are bound by reading the right matrix, which therefore happens once, from front to back.
#pragma once

#include "product.h"

namespace precast::few_rows {

constexpr int64_t most = 6;

// Some columns of all rows: vectors are along the depth.
template <int rows, int columns>
void dot_columns(const product_problem& problem, int64_t column, float (&sums)[rows][vector_lanes], int64_t place) {
    float_vector totals[rows][columns] = {};
    const float* right = problem.right + column * problem.right_step;
    for (int64_t k = 0; k < problem.depth; k += vector_lanes) {
        const int64_t lanes = std::min(vector_lanes, problem.depth - k);
        float_vector line[columns];
#pragma GCC unroll 8
        for (int each = 0; each < columns; ++each) {
            __builtin_prefetch(right + (each + columns) * problem.right_step + k);
            line[each] = load_lanes(right + each * problem.right_step + k, lanes);
        }
#pragma GCC unroll 8
        for (int row = 0; row < rows; ++row) {
            const float_vector factor = load_lanes(problem.left + row * problem.left_step + k, lanes);
#pragma GCC unroll 8
            for (int each = 0; each < columns; ++each) totals[row][each] = multiply_add(factor, line[each], totals[row][each]);
        }
    }
#pragma GCC unroll 8
    for (int row = 0; row < rows; ++row)
#pragma GCC unroll 8
        for (int each = 0; each < columns; ++each) sums[row][place + each] = sum_of(totals[row][each]);
}

template <int rows>
void multiply_rows(const product_problem& problem) {
    constexpr int together = rows <= 2 ? 8 : 4;
#pragma omp parallel for if (problem.is_large())
    for (int64_t first = 0; first < problem.columns; first += vector_lanes) {
        const int64_t lanes = std::min(vector_lanes, problem.columns - first);
        float sums[rows][vector_lanes] = {};
        int64_t each = 0;
        for (; each + together <= lanes; each += together) dot_columns<rows, together>(problem, first + each, sums, each);
        for (; each < lanes; ++each) dot_columns<rows, 1>(problem, first + each, sums, each);
        for (int64_t row = 0; row < rows; ++row) problem.write(load_vector(sums[row]), row, first, lanes);
    }
}

inline void multiply(const product_problem& problem) {
    switch (problem.rows) {
        case 1: return multiply_rows<1>(problem);
        case 2: return multiply_rows<2>(problem);
        case 3: return multiply_rows<3>(problem);
        case 4: return multiply_rows<4>(problem);
        case 5: return multiply_rows<5>(problem);
        case 6: return multiply_rows<6>(problem);
    }
}

}  // namespace precast::few_rows
