// Rows by a constant that is packed into panels on first use: the product is bound by reading it.
//
// A panel has a vector of contiguous columns, along the depth; the last `vectors` panels are padded with zeros. The number of
// partial sums depends on the depth alone, so that neither the other rows nor the number of threads change a result.
#pragma once

#include <omp.h>

#include "precast_tiles.h"
#include "product.h"

namespace precast::packed_product {

constexpr int64_t vectors = vector_lanes == 16 ? 4 : 2, columns_together = vectors * vector_lanes;
constexpr int64_t most_together = 6, part_depth = 384;
// Measured: with more rows, oneDNN is as fast.
constexpr int64_t most_rows = 12;

// The columns of one panel from `first` on.
inline void fill_panel(const strided& right, int64_t first, float* to) {
    const int64_t depth = right.sizes[0], count = std::min(vector_lanes, right.sizes[1] - first), step = right.strides[1];
    const auto* from = static_cast<const float*>(right.data) + first * step;
    if (right.strides[0] == 1 && count == vector_lanes) return turn(from, step, depth, count, to, vector_lanes);
    for (int64_t k = 0; k < depth; ++k)
        for (int64_t each = 0; each < vector_lanes; ++each)
            to[k * vector_lanes + each] = each < count ? from[k * right.strides[0] + each * step] : 0;
}

// The constant in panels; null if there is no memory.
inline const float* panels_of(context& context, const strided& right) {
    const int64_t depth = right.sizes[0], columns = right.sizes[1], elements = rounded_up(columns, columns_together) * depth;
    // Keys of other layouts begin with their size.
    const std::vector<int64_t> key{-1, static_cast<int64_t>(reinterpret_cast<intptr_t>(right.data)), depth, columns, right.strides[0],
                                   right.strides[1]};
    return reinterpret_cast<const float*>(
        context.packed.find(key, elements * static_cast<int64_t>(sizeof(float)), [&](char* place) {
#pragma omp parallel for if (elements > 65536)
            for (int64_t first = 0; first < columns; first += vector_lanes)
                fill_panel(right, first, reinterpret_cast<float*>(place) + first * depth);
            const int64_t filled = rounded_up(columns, vector_lanes) * depth;
            std::fill(reinterpret_cast<float*>(place) + filled, reinterpret_cast<float*>(place) + elements, 0.0f);
            return true;
        }));
}

// Some rows by a few panels. Sums of partial sums are more precise than one long sum.
template <int rows>
void multiply_panels(const product_problem& problem, int64_t first_row, const float* panels, int64_t first_column) {
    float_vector sums[vectors][rows] = {};
    const float* left = problem.left + first_row * problem.left_step;
    for (int64_t first = 0; first < problem.depth; first += part_depth) {
        float_vector totals[rows][vectors] = {};
        const int64_t end = std::min(problem.depth, first + part_depth);
        for (int64_t k = first; k < end; ++k) {
            float_vector line[vectors];
#pragma GCC unroll 4
            for (int each = 0; each < vectors; ++each) line[each] = in_register(load_vector(panels + (each * problem.depth + k) * vector_lanes));
#pragma GCC unroll 6
            for (int row = 0; row < rows; ++row) {
                const float_vector factor = same_in_all(left[row * problem.left_step + k]);
#pragma GCC unroll 4
                for (int each = 0; each < vectors; ++each) totals[row][each] = multiply_add(factor, line[each], totals[row][each]);
            }
        }
#pragma GCC unroll 6
        for (int row = 0; row < rows; ++row)
#pragma GCC unroll 4
            for (int each = 0; each < vectors; ++each) sums[each][row] += totals[row][each];
    }
    for (int64_t each = 0; each < vectors; ++each) {
        const int64_t column = first_column + each * vector_lanes;
        if (column < problem.columns) problem.write(sums[each], first_row, column, std::min(vector_lanes, problem.columns - column));
    }
}

inline void multiply_rows(const product_problem& problem, int64_t first_row, int64_t rows, const float* panels, int64_t first_column) {
    switch (rows) {
        case 1: return multiply_panels<1>(problem, first_row, panels, first_column);
        case 2: return multiply_panels<2>(problem, first_row, panels, first_column);
        case 3: return multiply_panels<3>(problem, first_row, panels, first_column);
        case 4: return multiply_panels<4>(problem, first_row, panels, first_column);
        case 5: return multiply_panels<5>(problem, first_row, panels, first_column);
        case 6: return multiply_panels<6>(problem, first_row, panels, first_column);
    }
}

// Consecutive steps multiply by the same constant: the part read last is still in a cache, and is read first. Threads have
// their own caches, and keep their columns.
inline bool begins_at_end(context& context, const product_problem& problem, const float* panels) {
    const bool is_alone = !problem.is_large() || omp_get_max_threads() == 1;
    context.began_at_end = is_alone && context.last_panels == panels && !context.began_at_end;
    context.last_panels = panels;
    return context.began_at_end;
}

inline void multiply(context& context, const product_problem& problem, const float* panels) {
    const int64_t groups = (problem.rows + most_together - 1) / most_together, last = rounded_up(problem.columns, columns_together) - columns_together;
    const bool is_backwards = begins_at_end(context, problem, panels);
#pragma omp parallel for if (problem.is_large())
    for (int64_t each = 0; each < problem.columns; each += columns_together)
        for (int64_t group = 0; group < groups; ++group) {
            const int64_t first = group * problem.rows / groups, end = (group + 1) * problem.rows / groups;
            const int64_t column = is_backwards ? last - each : each;
            multiply_rows(problem, first, end - first, panels + column * problem.depth, column);
        }
}

}  // namespace precast::packed_product
