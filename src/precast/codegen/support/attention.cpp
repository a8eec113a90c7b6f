// Scaled-dot-product attention by blocks of queries and keys: scores never leave a core's cache, and what a causal mask hides is
// not computed.
#include <omp.h>

#include "attention.h"

namespace precast {

namespace {

// So few queries are multiplied with each key where it lies: bringing keys into panels would take longer.
constexpr int64_t few_queries = 16;

void multiply_in_place(const attention_problem& problem, int64_t rows, const float* left, head_rows keys, int64_t start, int64_t count,
                       float* result) {
    for (int64_t key = 0; key < count; ++key) {
        const float* line = keys.data + (start + key) * keys.step;
        for (int64_t row = 0; row < rows; ++row) {
            float_vector sums = {};
            for (int64_t each = 0; each < problem.depth; each += vector_lanes)
                sums = multiply_add(load_vector(left + row * problem.width + each), load_vector(line + each), sums);
            result[row * key_block + key] = sum_of(sums);
        }
    }
}

// A row of a softmax that meets its scores block by block.
struct running_row {
    float top, sum;

    // Makes powers of the scores, which have room for whole vectors; gives what the sums of earlier blocks are to be multiplied by.
    float take(float* scores, int64_t count) {
        const int64_t padded = rounded_up(count, vector_lanes);
        std::fill(scores + count, scores + padded, -infinity<float>);
        float_vector highest = top - float_vector{}, more = {};
        for (int64_t each = 0; each < padded; each += vector_lanes) {
            const float_vector values = load_vector(scores + each);
            highest = values > highest ? values : highest;
        }
        const float before = top;
        top = largest_of(highest);
        // A row that sees nothing has no largest score, and gives 0.
        const float base = top == -infinity<float> ? 0 : top;
#pragma omp simd
        for (int64_t each = 0; each < padded; ++each) scores[each] = exp(scores[each] - base);
        for (int64_t each = 0; each < padded; each += vector_lanes) more += load_vector(scores + each);
        const float factor = before == top ? 1 : exp(before - base);
        sum = sum * factor + sum_of(more);
        return factor;
    }
};

// Memory of one thread.
struct attention_workspace {
    float *rows, *sums, *scores, *line;
    static int64_t size(const attention_problem& problem) {
        return 2 * query_block * problem.width + query_block * key_block + std::max(key_block, vector_lanes * problem.width);
    }
    attention_workspace(const attention_problem& problem, float* memory)
        : rows(memory), sums(rows + query_block * problem.width), scores(sums + query_block * problem.width),
          line(scores + query_block * key_block) {}
};

// One head's operands: keys packed, or, without that, where they lie.
struct attention_head {
    int64_t number;
    const float* packed_keys;
    head_rows keys, values;
};

void attend(const attention_problem& problem, const attention_head& head, int64_t first, const attention_workspace& work,
            const strided* outputs) {
    const int64_t rows = std::min(query_block, problem.queries - first), width = problem.width;
    const int64_t seen = problem.seen_by(first + rows - 1);
    running_row running[query_block];
    std::fill(running, running + rows, running_row{-infinity<float>, 0});
    std::fill(work.sums, work.sums + rows * width, 0.0f);
    read_queries(problem, head.number, first, rows, work.rows);
    for (int64_t start = 0; start < seen; start += key_block) {
        const int64_t count = std::min(key_block, seen - start);
        if (head.packed_keys) multiply_packed(problem, rows, work.rows, head.packed_keys, start, count, work.scores);
        else multiply_in_place(problem, rows, work.rows, head.keys, start, count, work.scores);
        for (int64_t row = 0; row < rows; ++row) {
            float* scores = work.scores + row * key_block;
            const int64_t visible = std::clamp<int64_t>(problem.seen_by(first + row) - start, 0, count);
            add_mask(problem, head.number, first + row, start, visible, scores, work.line);
            const float factor = running[row].take(scores, visible);
            std::fill(scores + visible, scores + count, 0.0f);
            if (start)
                for (int64_t each = 0; each < width; ++each) work.sums[row * width + each] *= factor;
        }
        for (int64_t key = 0; key < count; key += depth_block)
            multiply_block(rows, width, std::min(depth_block, count - key), {work.scores + key, key_block, 1},
                           head.values.data + (start + key) * head.values.step, head.values.step, work.sums, width, true);
    }
    const auto &output = outputs[0], &logarithms = outputs[1];
    for (int64_t row = 0; row < rows; ++row) {
        float* line = work.sums + row * width;
        // As eager has it: a row that sees nothing has the sum 1, though it gives 0.
        const bool is_blind = running[row].sum == 0;
        const float divisor = is_blind ? 1 : running[row].sum, logarithm = is_blind ? 0 : running[row].top + log(divisor);
        for (int64_t each = 0; each < width; ++each) line[each] /= divisor;
        write_line(line, output, problem.start_of(output, head.number) + (first + row) * output.strides[2], output.strides[3], problem.depth);
        write_line(&logarithm, logarithms, problem.start_of(logarithms, head.number) + (first + row) * logarithms.strides[2], 1, 1);
    }
}

}  // namespace

// Inputs: query, key, value, and a mask if there is one. Outputs: the result, and the logarithm of each row's sum of powers.
int32_t attention(context* context, const strided* inputs, const strided* outputs, const int64_t* numbers) {
    const attention_problem problem(inputs, inputs + 3, numbers);
    const bool packs_keys = problem.queries > few_queries || !is_plain(problem.key), copies_values = problem.queries > few_queries || !is_plain(problem.value);
    const int64_t head_size = problem.padded_keys * problem.width, own = rounded_up(attention_workspace::size(problem), vector_lanes);
    const int64_t blocks = (problem.queries + query_block - 1) / query_block, all = problem.heads * head_size;
    float* memory = floats(context, (packs_keys + copies_values) * all + own * omp_get_max_threads());
    if (!memory) return fail(PRECAST_FAILED, "no memory for attention");
    float *keys = memory, *values = keys + packs_keys * all, *workspaces = values + copies_values * all;
    const bool is_large = problem.heads * problem.queries * problem.keys * problem.depth > 65536;
#pragma omp parallel if (is_large)
    {
        const attention_workspace work(problem, workspaces + own * omp_get_thread_num());
#pragma omp for
        for (int64_t head = 0; head < problem.heads; ++head) {
            if (packs_keys) pack_transposed(problem, problem.key, head, keys + head * head_size, work.line);
            if (copies_values) read_rows(problem, problem.value, head, 0, problem.keys, values + head * head_size);
        }
#pragma omp for collapse(2) schedule(dynamic)
        for (int64_t head = 0; head < problem.heads; ++head)
            for (int64_t block = 0; block < blocks; ++block) {
                const head_rows copied{values + head * head_size, problem.width};
                const attention_head operands{head, packs_keys ? keys + head * head_size : nullptr, rows_in_place(problem, problem.key, head),
                                              copies_values ? copied : rows_in_place(problem, problem.value, head)};
                attend(problem, operands, block * query_block, work, outputs);
            }
    }
    return PRECAST_OK;
}

}  // namespace precast
