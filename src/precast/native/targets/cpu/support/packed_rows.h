// Many rows by a constant in panels, divided between threads by columns, and by rows if there are too few columns.
//
// A thread processes a few panels of columns at a time. A block of their depth stays in a cache for all rows, while the next
// block is prefetched. The number of partial sums depends on the depth alone, so that neither the other rows nor the number of
// threads change a result.
#pragma once

#include <type_traits>

#include "packed_product.h"

namespace precast::packed_rows {

constexpr int64_t block_depth = 384, block_rows = 128, cache_line = 16;
// Rows may be divided at the end of every strip.
constexpr int64_t row_unit = 4, strip_unit = 24;
constexpr int most_vectors = 3;

// Rows of a tile: as many as there are registers for their sums.
constexpr int strip_of(int vectors) { return vector_lanes == 16 ? (vectors == 3 ? 8 : 12) : (vectors == 3 ? 4 : 6); }

// The number of parts of rows and columns: `rows` are counted in units, `columns` in vectors.
struct grid {
    int64_t rows, columns, row_parts, column_parts;

    // Minimizes the work of the busiest thread, and then the memory read.
    grid(const product_problem& problem, int64_t threads)
        : rows((problem.rows + row_unit - 1) / row_unit), columns((problem.columns + vector_lanes - 1) / vector_lanes) {
        int64_t least = 0, least_read = 0;
        for (int64_t parts = 1; parts <= std::max<int64_t>(1, std::min(threads, problem.rows / strip_unit)); ++parts) {
            const int64_t others = std::min(columns, threads / parts);
            const int64_t high = row_unit * ((rows + parts - 1) / parts), wide = vector_lanes * ((columns + others - 1) / others);
            if (parts > 1 && (high * wide > least || (high * wide == least && high + wide >= least_read))) continue;
            row_parts = parts, column_parts = others, least = high * wide, least_read = high + wide;
        }
    }
    int64_t row(int64_t part) const { return row_unit * (rows * part / row_parts); }
    int64_t column(int64_t part) const { return columns * part / column_parts; }
};

// Some rows by some panels.
class part {
public:
    static constexpr int64_t sum_elements = (block_rows + strip_unit) * most_vectors * vector_lanes;

    part(const product_problem& problem, const float* panels, float* sums) : problem(problem), panels(panels), sums(sums) {}

    void multiply(int64_t first_row, int64_t end_row, int64_t panel, int64_t end_panel) const {
        const int64_t all = end_row - first_row, blocks = (all + block_rows - 1) / block_rows;
        const int64_t size = blocks > 1 ? rounded_up((all + blocks - 1) / blocks, strip_unit) : all;
        for (int64_t row = first_row; row < end_row; row += size)
            multiply_block(row, std::min(size, end_row - row), panel, end_panel);
    }

private:
    void multiply_block(int64_t row, int64_t rows, int64_t panel, int64_t end_panel) const {
        while (panel < end_panel) {
            const int64_t left = end_panel - panel;
            // Two tiles of two are faster than one of three and one of one.
            const int64_t count = left == 4 ? 2 : std::min<int64_t>(left, most_vectors);
            switch (count) {
                case 1: multiply_panels<1>(row, rows, panel); break;
                case 2: multiply_panels<2>(row, rows, panel); break;
                case 3: multiply_panels<3>(row, rows, panel); break;
            }
            panel += count;
        }
    }

    // The operands of a tile: `depth` from `first` on of `vectors` panels, and lines to prefetch for later tiles.
    struct block {
        int64_t panel, first, depth, first_row;
        const float *from, *ahead;
        int64_t fetched, lines;
    };

    template <int vectors>
    void multiply_panels(int64_t first_row, int64_t rows, int64_t panel) const {
        constexpr int64_t strip = strip_of(vectors);
        const int64_t step = problem.depth * vector_lanes;
        for (int64_t first = 0; first < problem.depth; first += block_depth) {
            const int64_t depth = std::min(block_depth, problem.depth - first), lines = (block_depth * strip + rows - 1) / rows;
            const float* from = panels + panel * step + first * vector_lanes;
            const float* ahead = first + depth < problem.depth ? from + depth * vector_lanes : panels + (panel + vectors) * step;
            block now{panel, first, depth, first_row, from, ahead, 0, lines};
            const auto tile = [&](auto size, int64_t row, int64_t known) {
                multiply_tile<size, vectors>(now, row, known);
                now.fetched += now.lines;
            };
            int64_t row = 0;
            for (; row + strip <= rows; row += strip) tile(std::integral_constant<int, strip>(), row, 0);
            // The remaining rows are computed together with rows before them: one row takes nearly as long as many.
            if (row && row < rows) tile(std::integral_constant<int, strip>(), rows - strip, strip - (rows - row));
            if (!row)
                for (; row < rows; ++row) tile(std::integral_constant<int, 1>(), row, 0);
        }
    }

    // All sums are in registers. The first `known` rows are already computed, and are not written.
    template <int rows, int vectors>
    __attribute__((noinline)) void multiply_tile(const block& block, int64_t row, int64_t known) const {
        float_vector totals[rows][vectors] = {};
        // Three rows share a pointer, since an address may include twice a stride: there are fewer registers than rows.
        constexpr int pointers = (rows + 2) / 3;
        const int64_t step = problem.left_step, panel_step = problem.depth * vector_lanes;
        const float *left[pointers], *right[vectors];
        for (int each = 0; each < pointers; ++each) left[each] = problem.left + (block.first_row + row + 3 * each) * step + block.first;
        for (int each = 0; each < vectors; ++each) right[each] = block.from + each * panel_step;
        const auto add = [&](int64_t k) {
            float_vector line[vectors];
#pragma GCC unroll 3
            for (int each = 0; each < vectors; ++each) line[each] = in_register(load_vector(right[each] + k * vector_lanes));
#pragma GCC unroll 12
            for (int each = 0; each < rows; ++each) {
                const float_vector factor = in_register(same_in_all(left[each / 3][each % 3 * step + k]));
#pragma GCC unroll 3
                for (int column = 0; column < vectors; ++column)
                    totals[each][column] = multiply_add(factor, line[column], totals[each][column]);
            }
        };
        const float* ahead = block.ahead + block.fetched * vector_lanes;
        const int64_t lines = (block.lines * cache_line + block.depth - 1) / block.depth;
        int64_t k = 0;
        for (; k + cache_line <= block.depth; k += cache_line) {
            for (int64_t line = 0; line < lines; ++line, ahead += vector_lanes)
#pragma GCC unroll 3
                for (int each = 0; each < vectors; ++each) __builtin_prefetch(ahead + each * panel_step);
#pragma GCC unroll 4
            for (int64_t each = k; each < k + cache_line; ++each) add(each);
        }
#pragma GCC unroll 1
        for (; k < block.depth; ++k) add(k);
        finish(totals, block, row, known);
    }

    // Sums of partial sums are more precise than one long sum.
    template <int rows, int vectors>
    void finish(float_vector (&totals)[rows][vectors], const block& block, int64_t row, int64_t known) const {
        float* place = sums + row * vectors * vector_lanes;
        const bool is_last = block.first + block.depth == problem.depth;
#pragma GCC unroll 12
        for (int each = 0; each < rows; ++each)
#pragma GCC unroll 3
            for (int column = 0; column < vectors; ++column) {
                float* sum = place + (each * vectors + column) * vector_lanes;
                if (block.first) totals[each][column] += load_vector(sum);
                if (!is_last && each >= known) store_vector(sum, totals[each][column]);
            }
        for (int column = 0; is_last && column < vectors; ++column) {
            const int64_t first = (block.panel + column) * vector_lanes, lanes = std::min(vector_lanes, problem.columns - first);
            float_vector values[rows];
            for (int each = 0; each < rows; ++each) values[each] = totals[each][column];
            if (!known) problem.write(values, block.first_row + row, first, lanes);
            for (int64_t each = known; known && each < rows; ++each) problem.write(values[each], block.first_row + row + each, first, lanes);
        }
    }

    const product_problem& problem;
    const float* const panels;
    float* const sums;
};

// Measured: oneDNN is faster with very many rows, and with results that exceed the caches.
inline bool is_best(const product_problem& problem) {
    constexpr int64_t most_rows = 512, most_results = 1 << 21;
    return problem.rows <= most_rows && problem.rows * problem.columns <= most_results;
}

// False if there is no memory.
inline bool multiply(context& context, const product_problem& problem, const float* panels) {
    const int64_t threads = problem.is_large() ? omp_get_max_threads() : 1;
    auto* sums = reinterpret_cast<float*>(context.scratch(threads * part::sum_elements * static_cast<int64_t>(sizeof(float))));
    if (!sums) return false;
    const grid grid(problem, threads);
#pragma omp parallel for schedule(static, 1) if (threads > 1)
    for (int64_t each = 0; each < grid.row_parts * grid.column_parts; ++each) {
        const int64_t row = each % grid.row_parts, column = each / grid.row_parts;
        part(problem, panels, sums + omp_get_thread_num() * part::sum_elements)
            .multiply(grid.row(row), std::min(problem.rows, grid.row(row + 1)), grid.column(column), grid.column(column + 1));
    }
    return true;
}

}  // namespace precast::packed_rows
