// Rows of 8-bit integers by columns of 8-bit integers, accumulated in 32 bits.
//
// Processors multiply unsigned by signed bytes: rows are offset by 128, and the effect of the offset is subtracted again.
#pragma once

#include "product.h"

namespace precast::integer_rows {

#if defined(__AVX512VNNI__) && defined(__AVX512BW__)
constexpr int64_t block = 64;
constexpr bool shifts_rows = true;
typedef __m512i sums;

inline sums multiply_add(sums total, const int8_t* row, sums column) {
    return _mm512_dpbusd_epi32(total, _mm512_loadu_si512(row), column);
}
inline sums read(const int8_t* from) { return _mm512_loadu_si512(from); }
inline sums add_up(sums total, sums column) { return _mm512_dpbusd_epi32(total, _mm512_set1_epi8(1), column); }
inline int32_t total_of(sums total) { return _mm512_reduce_add_epi32(total); }
inline sums nothing() { return _mm512_setzero_si512(); }
#elif defined(__AVX2__)
constexpr int64_t block = 16;
constexpr bool shifts_rows = false;
typedef __m256i sums;

inline sums read(const int8_t* from) { return _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))); }
inline sums multiply_add(sums total, const int8_t* row, sums column) {
    return _mm256_add_epi32(total, _mm256_madd_epi16(read(row), column));
}
inline sums add_up(sums total, sums) { return total; }
inline int32_t total_of(sums total) {
    alignas(32) int32_t lanes[8];
    _mm256_store_si256(reinterpret_cast<__m256i*>(lanes), total);
    int32_t all = 0;
    for (const int32_t lane : lanes) all += lane;
    return all;
}
inline sums nothing() { return _mm256_setzero_si256(); }
#else
constexpr int64_t block = 16;
constexpr bool shifts_rows = false;
struct sums {
    int32_t lanes[block];
};

inline sums read(const int8_t* from) {
    sums numbers;
    for (int64_t each = 0; each < block; ++each) numbers.lanes[each] = from[each];
    return numbers;
}
inline sums multiply_add(sums total, const int8_t* row, sums column) {
    for (int64_t each = 0; each < block; ++each) total.lanes[each] += row[each] * column.lanes[each];
    return total;
}
inline sums add_up(sums total, sums) { return total; }
inline int32_t total_of(sums total) {
    int32_t all = 0;
    for (const int32_t lane : total.lanes) all += lane;
    return all;
}
inline sums nothing() { return {}; }
#endif

// `left` has rows of whole blocks, as made by `arrange`; `product` describes the result.
struct problem {
    product_problem product;
    const int8_t *left, *codes;
    int64_t left_step, step;
};

// A row in the form of `multiply_add`, padded with zeros to a whole block.
inline void arrange(const int8_t* from, int64_t step, int64_t depth, int8_t* to) {
    for (int64_t k = 0; k < depth; ++k) to[k] = static_cast<int8_t>(shifts_rows ? from[k * step] ^ 0x80 : from[k * step]);
    std::fill(to + depth, to + rounded_up(depth, block), int8_t{0});
}

template <int rows, int columns>
void dot_columns(const problem& problem, int64_t first_row, int64_t first, float (&results)[rows][vector_lanes], int64_t place) {
    const int8_t *left = problem.left + first_row * problem.left_step, *codes = problem.codes + first * problem.step;
    const int64_t depth = problem.product.depth;
    sums totals[rows][columns], added[columns];
    for (int column = 0; column < columns; ++column) {
        added[column] = nothing();
        for (int row = 0; row < rows; ++row) totals[row][column] = nothing();
    }
    const auto multiply = [&](int64_t k, auto take) {
#pragma GCC unroll 4
        for (int column = 0; column < columns; ++column) {
            const sums numbers = take(codes + column * problem.step + k);
            added[column] = add_up(added[column], numbers);
#pragma GCC unroll 4
            for (int row = 0; row < rows; ++row)
                totals[row][column] = multiply_add(totals[row][column], left + row * problem.left_step + k, numbers);
        }
    };
    int64_t k = 0;
    for (; k + block <= depth; k += block) multiply(k, [](const int8_t* from) { return read(from); });
    if (k < depth)
        multiply(k, [&](const int8_t* from) {
            int8_t rest[block] = {};
            std::memcpy(rest, from, static_cast<size_t>(depth - k));
            return read(rest);
        });
    for (int column = 0; column < columns; ++column) {
        const int32_t more = shifts_rows ? 128 * total_of(added[column]) : 0;
        for (int row = 0; row < rows; ++row) results[row][place + column] = static_cast<float>(total_of(totals[row][column]) - more);
    }
}

template <int rows>
void multiply_rows(const problem& problem, int64_t first_row, int64_t first) {
    // For one row, memory is read from front to back.
    constexpr int together = rows;
    const int64_t lanes = std::min(vector_lanes, problem.product.columns - first);
    float results[rows][vector_lanes] = {};
    int64_t each = 0;
    for (; each + together <= lanes; each += together) dot_columns<rows, together>(problem, first_row, first + each, results, each);
    for (; each < lanes; ++each) dot_columns<rows, 1>(problem, first_row, first + each, results, each);
    for (int row = 0; row < rows; ++row) problem.product.write(load_vector(results[row]), first_row + row, first, lanes);
}

// Each thread has its own columns, which stay in its cache for all rows.
inline void multiply(const problem& problem) {
    const auto& product = problem.product;
#pragma omp parallel for if (product.is_large())
    for (int64_t first = 0; first < product.columns; first += vector_lanes) {
        int64_t row = 0;
        for (; row + 4 <= product.rows; row += 4) multiply_rows<4>(problem, row, first);
        for (; row < product.rows; ++row) multiply_rows<1>(problem, row, first);
    }
}

}  // namespace precast::integer_rows
