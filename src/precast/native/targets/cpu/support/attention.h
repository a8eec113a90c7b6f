// Shared by attention and its gradients: the problem, heads in the layouts of block products, scores.
#pragma once

#include <algorithm>
#include <cmath>
#include <utility>

#include "blocks.h"
#include "context.h"

namespace precast {

// Blocks of queries are whole strips of `multiply_block`.
constexpr int64_t query_block = 60, query_strip = 12, key_block = 512, depth_block = 128;

// Operands are [batch, heads, length, depth]; consecutive heads may share keys and values, of which there are then fewer. A
// mask is [batch, heads, queries, keys].
struct attention_problem {
    const strided &query, &key, &value;
    const strided* mask;
    bool is_causal;
    float scale;
    int64_t heads, queries, keys, depth, width, padded_keys, block_queries, score_step;

    // Numbers: whether it is causal, whether there is a mask, and the bits of the scale; -1: one over the root of the depth.
    attention_problem(const strided* operands, const strided* mask, const int64_t* numbers)
        : query(operands[0]), key(operands[1]), value(operands[2]), mask(numbers[1] ? mask : nullptr), is_causal(numbers[0] != 0),
          heads(query.sizes[0] * query.sizes[1]), queries(query.sizes[2]), keys(key.sizes[2]), depth(query.sizes[3]),
          width(rounded_up(depth, vector_lanes)), padded_keys(rounded_up(keys, panel)) {
        const int64_t blocks = std::max<int64_t>(1, (queries + query_block - 1) / query_block);
        block_queries = rounded_up((queries + blocks - 1) / blocks, query_strip);
        // Long rows of scores get an extra vector of padding: at a power of two they would collide in the cache.
        score_step = padded_keys < key_block ? padded_keys : key_block + vector_lanes;
        scale = numbers[2] < 0 ? 1 / std::sqrt(static_cast<float>(depth)) : from_bits<float>(static_cast<uint32_t>(numbers[2]));
    }

    // The start of a head, numbered through the batch.
    int64_t start_of(const strided& tensor, int64_t head) const {
        const int64_t sharing = query.sizes[1] / tensor.sizes[1];
        return head / query.sizes[1] * tensor.strides[0] + head % query.sizes[1] / sharing * tensor.strides[1];
    }
    // The number of keys that a query may attend to: the first ones.
    int64_t seen_by(int64_t number) const { return is_causal ? std::min(number + 1, keys) : keys; }
};

// Rows for block products, in place or copied.
struct head_rows {
    const float* data;
    int64_t step;
};

// Whether rows can be read in place, a vector at a time.
inline bool is_plain(const strided& tensor) {
    return tensor.dtype.bits == 32 && tensor.strides[3] == 1 && tensor.sizes[3] % vector_lanes == 0;
}

inline head_rows rows_in_place(const attention_problem& problem, const strided& tensor, int64_t head) {
    return {static_cast<const float*>(tensor.data) + problem.start_of(tensor, head), tensor.strides[2]};
}

// Copy rows of one head, times a factor, each padded with zeros to `width`.
inline void read_rows(const attention_problem& problem, const strided& tensor, int64_t head, int64_t first, int64_t count, float* to,
                      float factor = 1) {
    const auto in_place = rows_in_place(problem, tensor, head);
    for (int64_t row = 0; row < count; ++row) {
        float* line = to + row * problem.width;
        const float* from = line;
        if (is_plain(tensor)) {
            from = in_place.data + (first + row) * in_place.step;
        } else {
            read_line(tensor, problem.start_of(tensor, head) + (first + row) * tensor.strides[2], tensor.strides[3], problem.depth, line);
            std::fill(line + problem.depth, line + problem.width, 0.0f);
        }
        for (int64_t each = 0; each < problem.width; each += vector_lanes) store_vector(line + each, load_vector(from + each) * factor);
    }
}

// Pack one head, transposed, into panels; `lines` has room for `vector_lanes` rows.
inline void pack_transposed(const attention_problem& problem, const strided& tensor, int64_t head, float* to, float* lines) {
    for (int64_t first = 0; first < problem.padded_keys; first += vector_lanes) {
        const int64_t count = std::clamp<int64_t>(problem.keys - first, 0, vector_lanes);
        const bool is_in_place = is_plain(tensor) && count == vector_lanes;
        const auto rows = is_in_place ? rows_in_place(problem, tensor, head) : head_rows{lines - first * problem.width, problem.width};
        if (!is_in_place) {
            read_rows(problem, tensor, head, first, count, lines);
            std::fill(lines + count * problem.width, lines + vector_lanes * problem.width, 0.0f);
        }
        float* place = to + first / panel * panel * problem.width + first % panel;
        for (int64_t column = 0; column < problem.width; column += vector_lanes) {
            float_vector square[vector_lanes];
            for (int64_t each = 0; each < vector_lanes; ++each) square[each] = load_vector(rows.data + (first + each) * rows.step + column);
            transpose(square);
            for (int64_t each = 0; each < vector_lanes; ++each) store_vector(place + (column + each) * panel, square[each]);
        }
    }
}

// Rows times a packed matrix, for `count` columns from `start` on, a whole number of panels.
inline void multiply_packed(const attention_problem& problem, int64_t rows, const float* left, const float* packed, int64_t start, int64_t count,
                     float* result) {
    for (int64_t column = 0; column < count; column += panel)
        multiply_column<wide_vectors>(rows, {left, problem.width, 1}, packed + (start + column) * problem.width, panel, result + column,
                                      problem.score_step, problem.depth, false);
}

// Mask the scores of one query with `count` keys from `start` on.
inline void add_mask(const attention_problem& problem, int64_t head, int64_t query, int64_t start, int64_t count, float* scores, float* line) {
    if (!problem.mask) return;
    const auto& mask = *problem.mask;
    const int64_t place = problem.start_of(mask, head) + query * mask.strides[2] + start * mask.strides[3];
    const bool is_plain = mask.dtype.bits == 32 && mask.strides[3] == 1;
    if (!is_plain) read_line(mask, place, mask.strides[3], count, line);
    const float* added = is_plain ? static_cast<const float*>(mask.data) + place : line;
    for (int64_t each = 0; each < count; each += vector_lanes)
        store_vector(scores + each, load_vector(scores + each) + load_lanes(added + each, std::min(vector_lanes, count - each)));
}

// Whether a mask hides a range of keys from a query, whose row of the mask begins at `row`.
inline bool hides(const strided& mask, int64_t row, int64_t start, int64_t count) {
    const int64_t step = mask.strides[3];
    bool shows = false;
    if (mask.is_single() && step == 1) {
        const float* line = static_cast<const float*>(mask.data) + row + start;
#pragma omp simd reduction(| : shows)
        for (int64_t each = 0; each < count; ++each) shows |= line[each] != -infinity<float>;
    } else {
        for (int64_t each = 0; each < count; ++each) shows |= element_of(mask, row + (start + each) * step) != -infinity<float>;
    }
    return !shows;
}

// The range of keys, of the first `seen`, that some query of a block attends to, in whole strips: keys masked at both ends, such
// as the unused part of a cache, are not read.
inline std::pair<int64_t, int64_t> visible_keys(const attention_problem& problem, int64_t head, int64_t first, int64_t rows, int64_t seen) {
    constexpr int64_t strip = 64;
    if (!problem.mask) return {0, seen};
    int64_t begin = rounded_up(seen, strip), end = 0;
    for (int64_t row = first; row < first + rows; ++row) {
        const int64_t place = problem.start_of(*problem.mask, head) + row * problem.mask->strides[2];
        const auto is_hidden = [&](int64_t start) { return hides(*problem.mask, place, start, std::min(strip, seen - start)); };
        int64_t last = (seen - 1) / strip * strip, start = 0;
        while (last >= end && is_hidden(last)) last -= strip;
        end = std::max(end, std::min(seen, last + strip));
        while (start < begin && is_hidden(start)) start += strip;
        begin = std::min(begin, start);
    }
    return {std::min(begin, seen) / key_block * key_block, end};
}

inline float* floats(context* context, int64_t count) {
    return reinterpret_cast<float*>(context->scratch(count * static_cast<int64_t>(sizeof(float))));
}

}  // namespace precast
