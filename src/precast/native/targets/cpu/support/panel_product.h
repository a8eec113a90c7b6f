// Many rows: the left matrix, the smaller one, is packed into panels, and the right one is read in place.
//
// A panel has `panel_width` contiguous rows, along the depth. Products with it are columns of the result, which are transposed in
// registers before the epilogue and the store. The number of partial sums depends on the depth alone, so that the number of
// threads does not change a result.
#pragma once

#include <omp.h>

#include "precast_tiles.h"
#include "product.h"

namespace precast::panel_product {

constexpr int tile_columns = vector_lanes == 16 ? 12 : 6;
constexpr int64_t panel_width = 2 * vector_lanes;
// Panels of a block stay in the second-level cache; a group has as many columns as whole tiles and squares of vectors allow.
constexpr int64_t block_rows = 128, block_depth = 768, part_depth = 384, group_columns = 96, small_group = group_columns / 2;
constexpr int64_t cache_line = 16;
// Columns at a multiple of this stride collide in the first-level cache.
constexpr int64_t colliding_step = 512, copied_step = block_depth + cache_line;

struct tile {
    const float* data;
    int64_t step;
    const float* ahead;  // columns that are read after this tile, and how many of them to prefetch
    int64_t ahead_step, ahead_columns;
};

// A few columns by a panel, with all sums in registers; with `adds`, they are added to existing ones.
template <int vectors>
__attribute__((noinline)) void multiply_tile(const tile& tile, const float* panel, int64_t depth, float* sums, bool adds) {
    float_vector totals[tile_columns][vectors] = {};
    const int64_t step = tile.step;
    const float* from[tile_columns / 3];
#pragma GCC unroll 4
    for (int each = 0; each < tile_columns / 3; ++each) from[each] = tile.data + 3 * each * step;
    const auto add = [&](int64_t k) {
        float_vector line[vectors];
#pragma GCC unroll 2
        for (int each = 0; each < vectors; ++each) line[each] = load_vector(panel + k * panel_width + each * vector_lanes);
#pragma GCC unroll 12
        for (int column = 0; column < tile_columns; ++column) {
            const float_vector factor = same_in_all(from[column / 3][column % 3 * step + k]);
#pragma GCC unroll 2
            for (int each = 0; each < vectors; ++each) totals[column][each] = multiply_add(factor, line[each], totals[column][each]);
        }
    };
    int64_t k = 0;
    for (; k + cache_line <= depth; k += cache_line) {
        for (int64_t each = 0; each < tile.ahead_columns; ++each) __builtin_prefetch(tile.ahead + each * tile.ahead_step + k, 0, 2);
#pragma GCC unroll 1
        for (int64_t each = k; each < k + cache_line; ++each) add(each);
    }
#pragma GCC unroll 1
    for (; k < depth; ++k) add(k);
#pragma GCC unroll 12
    for (int column = 0; column < tile_columns; ++column)
#pragma GCC unroll 2
        for (int each = 0; each < vectors; ++each) {
            float* place = sums + column * panel_width + each * vector_lanes;
            store_vector(place, adds ? load_vector(place) + totals[column][each] : totals[column][each]);
        }
}

class block {
public:
    block(const product_problem& problem, int64_t first_row, float* panels)
        : problem(problem), first_row(first_row), rows(std::min(block_rows, problem.rows - first_row)), panels(panels) {}

    static int64_t panel_elements(int64_t depth) { return block_rows * depth; }
    static constexpr int64_t thread_elements = block_rows * group_columns + tile_columns * copied_step;

    // `scratch` has `thread_elements` for each thread.
    void run(float* scratch) const {
        const shares shares(rows, problem.columns, problem.is_large() ? omp_get_max_threads() : 1);
#pragma omp parallel if (problem.is_large())
        {
            float *sums = scratch + omp_get_thread_num() * thread_elements, *copy = sums + block_rows * group_columns;
#pragma omp for collapse(2)
            for (int64_t row = 0; row < rows; row += vector_lanes)
                for (int64_t k = 0; k < problem.depth; k += filled_depth)
                    fill_panel(row, k, std::min(problem.depth, k + filled_depth));
#pragma omp for collapse(2) schedule(dynamic)
            for (int64_t column = 0; column < problem.columns; column += shares.columns)
                for (int64_t row = 0; row < rows; row += shares.rows)
                    multiply(column, std::min(shares.columns, problem.columns - column), row, std::min(rows, row + shares.rows), sums, copy);
        }
    }

private:
    static constexpr int64_t filled_depth = 128;

    // A thread's unit of work: small groups of columns if there are few, and half the rows if that is better balanced.
    struct shares {
        int64_t rows, columns;

        shares(int64_t all_rows, int64_t all_columns, int64_t threads)
            : rows(all_rows), columns(all_columns < 2 * threads * group_columns ? small_group : group_columns) {
            const int64_t groups = (all_columns + columns - 1) / columns, half = rounded_up((all_rows + 1) / 2, panel_width);
            const auto longest = [&](int64_t tasks, int64_t size) { return (tasks + threads - 1) / threads * size; };
            if (longest(2 * groups, half) < longest(groups, all_rows)) rows = half;
        }
    };

    // Vectors of rows for a range of the depth; missing rows of the last vector are 0.
    void fill_panel(int64_t row, int64_t k, int64_t end) const {
        float* panel = panels + row / panel_width * panel_width * problem.depth + row % panel_width;
        for (; k < end; k += vector_lanes) {
            const int64_t lanes = std::min(vector_lanes, problem.depth - k);
            float_vector square[vector_lanes];
            for (int64_t each = 0; each < vector_lanes; ++each)
                square[each] = row + each < rows ? load_lanes(problem.left + (first_row + row + each) * problem.left_step + k, lanes)
                                                 : float_vector{};
            transpose<vector_lanes>(square);
            for (int64_t each = 0; each < lanes; ++each) store_vector(panel + (k + each) * panel_width, square[each]);
        }
    }

    void multiply(int64_t column, int64_t columns, int64_t row, int64_t end_row, float* sums, float* copy) const {
        for (int64_t first = 0; first < problem.depth; first += block_depth) multiply_group(column, columns, first, row, end_row, sums, copy);
        for (; row < end_row; row += vector_lanes) write(column, columns, row, sums);
    }

    void multiply_group(int64_t first_column, int64_t columns, int64_t first, int64_t start_row, int64_t end_row, float* sums, float* copy) const {
        const int64_t depth = std::min(block_depth, problem.depth - first);
        const bool is_last = first + depth == problem.depth;
        for (int64_t column = 0; column < columns; column += tile_columns) {
            auto tile = tile_of(first_column + column, first, depth, end_row - start_row, copy);
            tile.ahead = column + tile_columns < columns ? at(first_column + column + tile_columns, first)
                         : is_last                       ? at(first_column + columns, 0)
                                                         : at(first_column, first + depth);
            for (int64_t row = start_row; row < end_row; row += panel_width, tile.ahead += tile.ahead_columns * tile.ahead_step) {
                const float* panel = panels + row * problem.depth + first * panel_width;
                float* totals = sums + row * group_columns + column * panel_width;
                if (is_last) prefetch_results(row, first_column + column / tile_columns * cache_line);
                rows - row > vector_lanes ? multiply_parts<2>(tile, panel, depth, totals, first > 0)
                                          : multiply_parts<1>(tile, panel, depth, totals, first > 0);
            }
        }
    }

    // Sums of partial sums are more precise than one long sum.
    template <int vectors>
    static void multiply_parts(tile tile, const float* panel, int64_t depth, float* sums, bool adds) {
        for (int64_t first = 0; first < depth; first += part_depth) {
            multiply_tile<vectors>(tile, panel + first * panel_width, std::min(part_depth, depth - first), sums, adds || first > 0);
            tile.data += part_depth, tile.ahead += part_depth;
        }
    }

    const float* at(int64_t column, int64_t k) const { return problem.right + column * problem.right_step + k; }

    // Some columns in place, or, if they are too few or collide in the cache, copied, padded with zero columns.
    tile tile_of(int64_t column, int64_t first, int64_t depth, int64_t rows, float* copy) const {
        const int64_t columns = std::min<int64_t>(tile_columns, problem.columns - column);
        const int64_t ahead_columns = tile_columns / ((rows + panel_width - 1) / panel_width);
        if (columns == tile_columns && problem.right_step % colliding_step != 0)
            return {at(column, first), problem.right_step, nullptr, problem.right_step, ahead_columns};
        for (int64_t each = 0; each < tile_columns; ++each)
            for (int64_t k = 0; k < depth; k += vector_lanes)
                store_vector(copy + each * copied_step + k,
                             each < columns ? load_lanes(at(column + each, first + k), std::min(vector_lanes, depth - k)) : float_vector{});
        return {copy, copied_step, nullptr, problem.right_step, ahead_columns};
    }

    // Prefetch a line of each row that is written when the group is done.
    void prefetch_results(int64_t row, int64_t column) const {
        if (column >= problem.columns) return;
        for (int64_t each = row; each < std::min(rows, row + panel_width); ++each)
            __builtin_prefetch(problem.result + (first_row + each) * problem.result_step + column, 1);
    }

    void write(int64_t first_column, int64_t columns, int64_t row, const float* sums) const {
        const float* from = sums + row / panel_width * panel_width * group_columns + row % panel_width;
        for (int64_t column = 0; column < columns; column += vector_lanes) {
            float_vector square[vector_lanes];
            for (int64_t each = 0; each < vector_lanes; ++each) square[each] = load_vector(from + (column + each) * panel_width);
            transpose<vector_lanes>(square);
            for (int64_t each = 0; each < std::min(vector_lanes, rows - row); ++each)
                problem.write(square[each], first_row + row + each, first_column + column, std::min(vector_lanes, columns - column));
        }
    }

    const product_problem& problem;
    const int64_t first_row, rows;
    float* const panels;
};

inline bool multiply(context& context, const product_problem& problem) {
    const int64_t panel_elements = block::panel_elements(problem.depth);
    const int64_t elements = panel_elements + omp_get_max_threads() * block::thread_elements;
    auto* scratch = reinterpret_cast<float*>(context.scratch(elements * static_cast<int64_t>(sizeof(float))));
    if (!scratch) return false;
    for (int64_t row = 0; row < problem.rows; row += block_rows) block(problem, row, scratch).run(scratch + panel_elements);
    return true;
}

}  // namespace precast::panel_product
