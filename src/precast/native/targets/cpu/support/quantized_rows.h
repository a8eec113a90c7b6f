// Rows by quantized weights. Few rows are bound by reading the weights, which therefore happens once, from front to back. For many
// rows, a panel of columns is dequantized, in a core's cache, for all rows.
#pragma once

#include "product.h"
#include "quantized_weights.h"

namespace precast::quantized_rows {

// Measured: with more rows, panels are faster.
constexpr int64_t most_few = 16;
constexpr int64_t depth_part = 256;

// `left` has its numbers in the order of `Codes`, padded with zeros to whole blocks; the finish is that of the result.
struct problem {
    product_problem product;
    quantized_weights weights;
};

// The number of bytes of so many codes, which are whole bytes.
template <class Codes>
constexpr int64_t bytes_of(int64_t codes) {
    return codes * Codes::bytes / Codes::block;
}

// The last block of a column, with `count` codes; the others are zeros.
template <class Codes>
void read_some(const Codes& codes, const uint8_t* from, int64_t count, float_vector (&numbers)[Codes::vectors]) {
    uint8_t rest[Codes::bytes] = {};
    // A byte's second code may be missing.
    const int64_t there = Codes::bytes < Codes::block ? count + count % 2 : count;
    std::memcpy(rest, from, static_cast<size_t>(bytes_of<Codes>(there)));
    codes.read(rest, numbers);
}

// Some columns of some rows: vectors are along the depth. One row takes a column at a time, since processors prefetch sequential
// reads; several rows take several columns, since their own numbers are reread for each.
template <class Codes, int rows, int columns>
void dot_columns(const problem& problem, int64_t first_row, int64_t first, float (&sums)[rows][vector_lanes], int64_t place, float* memory) {
    // Independent sums.
    constexpr int blocks = std::max(1, 4 / rows / columns / Codes::vectors), chains = blocks * Codes::vectors;
    constexpr int64_t ahead = 4096;
    const auto& product = problem.product;
    const auto& weights = problem.weights;
    const column_facts<columns> facts(weights, first, memory);
    const float* left = product.left + first_row * product.left_step;
    const uint8_t* codes = weights.codes + first * weights.step;
    float_vector totals[rows][columns] = {};
    for (int64_t group = 0; group < weights.groups; ++group) {
        const int64_t start = group * weights.group, end = std::min(start + weights.group, product.depth);
        float_vector parts[rows][columns][chains] = {};
        const auto multiply = [&](int64_t k, int chain, auto read) {
#pragma GCC unroll 4
            for (int column = 0; column < columns; ++column) {
                const uint8_t* from = codes + column * weights.step + bytes_of<Codes>(k);
                if (columns > 1) __builtin_prefetch(from + ahead);
                float_vector numbers[Codes::vectors];
                read(Codes(facts.zero(column, group)), from, numbers);
#pragma GCC unroll 2
                for (int each = 0; each < Codes::vectors; ++each) {
                    const float_vector factor = in_register(numbers[each]);
                    // If there are enough registers, the lanes of a vector are accumulated together.
                    const int to = columns > 1 ? 0 : chain + each;
#pragma GCC unroll 4
                    for (int row = 0; row < rows; ++row)
                        parts[row][column][to] =
                            multiply_add(load_vector(left + row * product.left_step + k + each * vector_lanes), factor, parts[row][column][to]);
                }
            }
        };
        const auto whole = [](const Codes& kind, const uint8_t* from, auto& numbers) { kind.read(from, numbers); };
        int64_t k = start;
        for (; k + blocks * Codes::block <= end; k += blocks * Codes::block) {
#pragma GCC unroll 4
            for (int each = 0; each < blocks; ++each) multiply(k + each * Codes::block, each * Codes::vectors, whole);
        }
        for (; k + Codes::block <= end; k += Codes::block) multiply(k, 0, whole);
        if (k < end) multiply(k, 0, [&](const Codes& kind, const uint8_t* from, auto& numbers) { read_some(kind, from, end - k, numbers); });
#pragma GCC unroll 4
        for (int column = 0; column < columns; ++column) {
            const float_vector scale = same_in_all(facts.scales[column][group]);
#pragma GCC unroll 4
            for (int row = 0; row < rows; ++row) {
                float_vector part = parts[row][column][0];
#pragma GCC unroll 4
                for (int chain = 1; columns == 1 && chain < chains; ++chain) part += parts[row][column][chain];
                totals[row][column] = multiply_add(scale, part, totals[row][column]);
            }
        }
    }
#pragma GCC unroll 4
    for (int row = 0; row < rows; ++row)
#pragma GCC unroll 4
        for (int column = 0; column < columns; ++column) sums[row][place + column] = sum_of(totals[row][column]);
}

template <class Codes, int rows>
void multiply_rows(const problem& problem, int64_t first_row, int64_t first, float* memory) {
    constexpr int together = rows;
    const int64_t lanes = std::min(vector_lanes, problem.product.columns - first);
    float sums[rows][vector_lanes] = {};
    int64_t each = 0;
    for (; each + together <= lanes; each += together) dot_columns<Codes, rows, together>(problem, first_row, first + each, sums, each, memory);
    for (; each < lanes; ++each) dot_columns<Codes, rows, 1>(problem, first_row, first + each, sums, each, memory);
    for (int row = 0; row < rows; ++row) problem.product.write(load_vector(sums[row]), first_row + row, first, lanes);
}

// Some columns of all rows. What was read for the first rows is in a cache for the next.
template <class Codes>
void multiply_few(const problem& problem, int64_t first, float* memory) {
    int64_t row = 0;
    for (; row + 4 <= problem.product.rows; row += 4) multiply_rows<Codes, 4>(problem, row, first, memory);
    for (; row + 2 <= problem.product.rows; row += 2) multiply_rows<Codes, 2>(problem, row, first, memory);
    if (row < problem.product.rows) multiply_rows<Codes, 1>(problem, row, first, memory);
}

// Floats of a range of the depth of a panel's columns, row by row in the form of `multiply_block`.
template <class Codes>
void fill_panel(const problem& problem, int64_t first, int64_t start, int64_t end, float* to, float* memory) {
    const auto& weights = problem.weights;
    const int64_t columns = problem.product.columns, depth = problem.product.depth;
    for (int64_t part = 0; part < panel; part += vector_lanes) {
        for (int64_t k = start; k < end; k += Codes::block) {
            float_vector squares[Codes::vectors][vector_lanes] = {};
            for (int64_t each = 0; each < vector_lanes; ++each) {
                const int64_t column = first + part + each, group = k / weights.group;
                if (column >= columns) break;
                const auto* scales = memory + 2 * (part + each) * weights.groups;
                const Codes codes(scales[weights.groups + group]);
                const uint8_t* from = weights.codes + column * weights.step + bytes_of<Codes>(k);
                float_vector numbers[Codes::vectors];
                if (k + Codes::block <= depth) codes.read(from, numbers);
                else read_some(codes, from, depth - k, numbers);
                for (int vector = 0; vector < Codes::vectors; ++vector) squares[vector][each] = numbers[vector] * scales[group];
            }
            for (int vector = 0; vector < Codes::vectors; ++vector) {
                transpose(squares[vector]);
                for (int64_t each = 0; each < vector_lanes; ++each)
                    store_vector(to + (k - start + vector * vector_lanes + each) * panel + part, squares[vector][each]);
            }
        }
    }
}

// All rows by a panel.
template <class Codes>
void multiply_panel(const problem& problem, int64_t first, float* memory) {
    const auto& product = problem.product;
    const auto& weights = problem.weights;
    const int64_t lanes = std::min(panel, product.columns - first), depth = rounded_up(product.depth, Codes::block);
    float *numbers = memory, *sums = numbers + depth_part * panel, *facts = sums + product.rows * panel;
    for (int64_t each = 0; each < lanes; ++each) {
        float* to = facts + 2 * each * weights.groups;
        const column_facts<1> column(weights, first + each, facts + 2 * panel * weights.groups);
        std::copy(column.scales[0], column.scales[0] + weights.groups, to);
        for (int64_t group = 0; group < weights.groups; ++group) to[weights.groups + group] = column.zero(0, group);
    }
    for (int64_t start = 0; start < depth; start += depth_part) {
        const int64_t end = std::min(depth, start + depth_part);
        fill_panel<Codes>(problem, first, start, end, numbers, facts);
        multiply_block(product.rows, panel, end - start, {product.left + start, product.left_step, 1}, numbers, panel, sums, panel, start > 0);
    }
    for (int64_t row = 0; row < product.rows; ++row)
        for (int64_t part = 0; part < lanes; part += vector_lanes)
            product.write(load_vector(sums + row * panel + part), row, first + part, std::min(vector_lanes, lanes - part));
}

// Memory of one thread, in floats.
inline int64_t workspace_of(const problem& problem) {
    const int64_t facts = 2 * (panel + 4) * problem.weights.groups;
    const bool is_few = problem.product.rows <= most_few;
    return rounded_up(facts + (is_few ? 0 : (depth_part + problem.product.rows) * panel), vector_lanes);
}

// Each thread has its own columns. `memory` is a workspace for each.
template <class Codes>
void multiply(const problem& problem, float* memory) {
    const auto& product = problem.product;
    const int64_t own = workspace_of(problem);
    if (product.rows > most_few) {
#pragma omp parallel for schedule(dynamic) if (product.is_large())
        for (int64_t first = 0; first < product.columns; first += panel)
            multiply_panel<Codes>(problem, first, memory + own * omp_get_thread_num());
        return;
    }
#pragma omp parallel for if (product.is_large())
    for (int64_t first = 0; first < product.columns; first += vector_lanes)
        multiply_few<Codes>(problem, first, memory + own * omp_get_thread_num());
}

}  // namespace precast::quantized_rows
