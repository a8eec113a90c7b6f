// Gradients of scaled-dot-product attention, head by head: weights are recomputed, block by block.
#include <omp.h>

#include <utility>

#include "attention.h"

namespace precast {

namespace {

// One thread's workspace for the backward of one head.
struct gradient_workspace {
    float *keys, *values, *key_rows, *to_keys, *to_values, *rows, *slopes, *to_rows, *scores, *pulls, *line;
    static int64_t size(const attention_problem& problem) {
        const int64_t blocks = problem.block_queries * (3 * problem.width + 2 * problem.score_step) + std::max(key_block, vector_lanes * problem.width);
        return 5 * problem.padded_keys * problem.width + blocks;
    }
    gradient_workspace(const attention_problem& problem, float* memory) {
        const int64_t head = problem.padded_keys * problem.width, block = problem.block_queries * problem.width;
        for (float** each : {&keys, &values, &key_rows, &to_keys, &to_values}) *each = std::exchange(memory, memory + head);
        for (float** each : {&rows, &slopes, &to_rows}) *each = std::exchange(memory, memory + block);
        for (float** each : {&scores, &pulls}) *each = std::exchange(memory, memory + problem.block_queries * problem.score_step);
        line = memory;
    }
};

// Computes the weights of one query from its scores, then the gradients of its scores. `inner` is the dot product of its output
// and the output's gradient. Keys from `visible` on have weight 0, and 0 times NaN is NaN, as in eager.
void pull_row(float inner, float logarithm, float* scores, float* pulls, int64_t visible, int64_t count) {
#pragma omp simd
    for (int64_t each = 0; each < visible; ++each) {
        scores[each] = exp(scores[each] - logarithm);
        pulls[each] = scores[each] * (pulls[each] - inner);
    }
    for (int64_t each = visible; each < count; ++each) {
        scores[each] = 0;
        pulls[each] = 0 * (pulls[each] - inner);
    }
}

void pull_block(const attention_problem& problem, const strided& gradient, const strided& output, const strided& sums, int64_t head,
                int64_t first, const gradient_workspace& work, const strided& to_query) {
    const int64_t rows = std::min(problem.block_queries, problem.queries - first), width = problem.width;
    const int64_t seen = problem.seen_by(first + rows - 1);
    float inner[query_block], logarithm[query_block];
    read_rows(problem, gradient, head, first, rows, work.slopes);
    // The output is needed for this sum only; its rows may be overwritten by those of the gradient.
    read_rows(problem, output, head, first, rows, work.to_rows);
    for (int64_t row = 0; row < rows; ++row) {
        float total = 0;
#pragma omp simd reduction(+ : total)
        for (int64_t each = 0; each < width; ++each) total += work.slopes[row * width + each] * work.to_rows[row * width + each];
        inner[row] = total;
        logarithm[row] = element_of(sums, problem.start_of(sums, head) + (first + row) * sums.strides[2]);
    }
    read_rows(problem, problem.query, head, first, rows, work.rows, problem.scale);
    if (!seen) std::fill(work.to_rows, work.to_rows + rows * width, 0.0f);
    for (int64_t start = 0; start < seen; start += key_block) {
        const int64_t count = std::min(key_block, seen - start);
        multiply_packed(problem, rows, work.rows, work.keys, start, count, work.scores);
        multiply_packed(problem, rows, work.slopes, work.values, start, count, work.pulls);
        for (int64_t row = 0; row < rows; ++row) {
            float *scores = work.scores + row * problem.score_step, *pulls = work.pulls + row * problem.score_step;
            const int64_t visible = std::clamp<int64_t>(problem.seen_by(first + row) - start, 0, count);
            add_mask(problem, head, first + row, start, visible, scores, work.line);
            pull_row(inner[row], logarithm[row], scores, pulls, visible, count);
        }
        multiply_block(count, width, rows, {work.scores, 1, problem.score_step}, work.slopes, width, work.to_values + start * width, width, true);
        multiply_block(count, width, rows, {work.pulls, 1, problem.score_step}, work.rows, width, work.to_keys + start * width, width, true);
        for (int64_t key = 0; key < count; key += depth_block)
            multiply_block(rows, width, std::min(depth_block, count - key), {work.pulls + key, problem.score_step, 1},
                           work.key_rows + (start + key) * width, width, work.to_rows, width, start + key > 0);
    }
    // The gradients of later keys include 0 times that, too.
    float hidden = 0;
    for (int64_t row = 0; row < rows; ++row) hidden += 0 * inner[row];
    if (hidden != 0) std::fill(work.to_keys + seen * width, work.to_keys + problem.keys * width, hidden);
    for (int64_t row = 0; row < rows; ++row) {
        float* line = work.to_rows + row * width;
        for (int64_t each = 0; each < width; ++each) line[each] *= problem.scale;
        write_line(line, to_query, problem.start_of(to_query, head) + (first + row) * to_query.strides[2], to_query.strides[3], problem.depth);
    }
}

void write_rows(const attention_problem& problem, const float* from, const strided& to, int64_t head) {
    for (int64_t row = 0; row < problem.keys; ++row)
        write_line(from + row * problem.width, to, problem.start_of(to, head) + row * to.strides[2], to.strides[3], problem.depth);
}

}  // namespace

// Inputs: the result's gradient, query, key, value, both results of `attention`, and a mask if there is one.
// Outputs: gradients of query, key and value.
int32_t attention_backward(context* context, const strided* inputs, const strided* outputs, const int64_t* numbers) {
    const attention_problem problem(inputs + 1, inputs + 6, numbers);
    const int64_t own = rounded_up(gradient_workspace::size(problem), vector_lanes);
    float* memory = floats(context, own * omp_get_max_threads());
    if (!memory) return fail(PRECAST_FAILED, "no memory for the gradients of attention");
    const bool is_large = problem.heads * problem.queries * problem.keys * problem.depth > 65536;
#pragma omp parallel for if (is_large) schedule(dynamic)
    for (int64_t head = 0; head < problem.heads; ++head) {
        const gradient_workspace work(problem, memory + own * omp_get_thread_num());
        pack_transposed(problem, problem.key, head, work.keys, work.line);
        pack_transposed(problem, problem.value, head, work.values, work.line);
        read_rows(problem, problem.key, head, 0, problem.keys, work.key_rows);
        for (float* each : {work.to_keys, work.to_values}) std::fill(each, each + problem.keys * problem.width, 0.0f);
        for (int64_t first = 0; first < problem.queries; first += problem.block_queries)
            pull_block(problem, inputs[0], inputs[4], inputs[5], head, first, work, outputs[0]);
        write_rows(problem, work.to_keys, outputs[1], head);
        write_rows(problem, work.to_values, outputs[2], head);
    }
    return PRECAST_OK;
}

}  // namespace precast
