// Scaled-dot-product attention by blocks of queries and keys: scores never leave a core's cache, and blocks hidden by a causal
// mask are skipped.
#include <omp.h>

#include "attention.h"

namespace precast {

namespace {

// Up to this many queries are multiplied with keys in place: packing keys into panels would take longer.
constexpr int64_t few_queries = 16;

void multiply_in_place(const attention_problem& problem, int64_t rows, const float* left, head_rows keys, int64_t start, int64_t count,
                       float* result) {
    for (int64_t key = 0; key < count; ++key) {
        const float* line = keys.data + (start + key) * keys.step;
        for (int64_t row = 0; row < rows; ++row) {
            float_vector sums = {};
            for (int64_t each = 0; each < problem.depth; each += vector_lanes)
                sums = multiply_add(load_vector(left + row * problem.width + each), load_vector(line + each), sums);
            result[row * problem.score_step + key] = sum_of(sums);
        }
    }
}

// One row of an online softmax, which receives its scores block by block.
struct running_row {
    float top, sum;

    // Subtracts the maximum so far from the scores; those from `count` to `padded` become −infinity. Returns the factor for the
    // sums of earlier blocks.
    float take(float* scores, int64_t count, int64_t padded) {
        const float_vector lowest = same_in_all(-infinity<float>);
        float_vector highest = same_in_all(top);
        for (int64_t each = 0; each < padded; each += vector_lanes) {
            const float_vector values = joined(load_vector(scores + each), std::clamp<int64_t>(count - each, 0, vector_lanes), lowest);
            highest = values > highest ? values : highest;
            store_vector(scores + each, values);
        }
        const float before = top;
        top = largest_of(highest);
        // A fully masked row has no maximum, and yields 0.
        const float base = top == -infinity<float> ? 0 : top;
        for (int64_t each = 0; each < padded; each += vector_lanes) store_vector(scores + each, load_vector(scores + each) - base);
        const float factor = before == top ? 1 : before == -infinity<float> ? 0 : exp(before - base);
        sum *= factor;
        return factor;
    }
    void add(const float* powers, int64_t padded) {
        float_vector more = {};
        for (int64_t each = 0; each < padded; each += vector_lanes) more += load_vector(powers + each);
        sum += sum_of(more);
    }
};

// Memory of one thread.
struct attention_workspace {
    float *rows, *sums, *scores, *line;
    static int64_t size(const attention_problem& problem) {
        return problem.block_queries * (2 * problem.width + problem.score_step) + std::max(key_block, vector_lanes * problem.width);
    }
    attention_workspace(const attention_problem& problem, float* memory)
        : rows(memory), sums(rows + problem.block_queries * problem.width), scores(sums + problem.block_queries * problem.width),
          line(scores + problem.block_queries * problem.score_step) {}
};

// One head's operands: keys are packed, or, without packing, in place.
struct attention_head {
    int64_t number;
    const float* packed_keys;
    head_rows keys, values;
};

// How heads are converted to the layouts of block products.
struct head_layout {
    bool packs_keys, copies_values;
    int64_t head_size;  // of keys or values

    explicit head_layout(const attention_problem& problem)
        : packs_keys(problem.queries > few_queries || !is_plain(problem.key)),
          copies_values(problem.queries > few_queries || !is_plain(problem.value)), head_size(problem.padded_keys * problem.width) {}

    int64_t size() const { return (packs_keys + copies_values) * head_size; }
    attention_head of(const attention_problem& problem, int64_t head, const float* memory) const {
        const head_rows copied{memory + packs_keys * head_size, problem.width};
        return {head, packs_keys ? memory : nullptr, rows_in_place(problem, problem.key, head),
                copies_values ? copied : rows_in_place(problem, problem.value, head)};
    }
    void fill(const attention_problem& problem, int64_t head, float* memory, float* line) const {
        if (packs_keys) pack_transposed(problem, problem.key, head, memory, line);
        if (copies_values) read_rows(problem, problem.value, head, 0, problem.keys, memory + packs_keys * head_size);
    }
};

void attend(const attention_problem& problem, const attention_head& head, int64_t first, const attention_workspace& work,
            const strided* outputs) {
    const int64_t rows = std::min(problem.block_queries, problem.queries - first), width = problem.width;
    const auto [begin, seen] = visible_keys(problem, head.number, first, rows, problem.seen_by(first + rows - 1));
    running_row running[query_block];
    std::fill(running, running + rows, running_row{-infinity<float>, 0});
    if (seen <= begin) std::fill(work.sums, work.sums + rows * width, 0.0f);
    read_rows(problem, problem.query, head.number, first, rows, work.rows, problem.scale);
    for (int64_t start = begin; start < seen; start += key_block) {
        const int64_t count = std::min(key_block, seen - start);
        if (head.packed_keys) multiply_packed(problem, rows, work.rows, head.packed_keys, start, count, work.scores);
        else multiply_in_place(problem, rows, work.rows, head.keys, start, count, work.scores);
        const int64_t padded = rounded_up(count, vector_lanes);
        for (int64_t row = 0; row < rows; ++row) {
            float* scores = work.scores + row * problem.score_step;
            const int64_t visible = std::clamp<int64_t>(problem.seen_by(first + row) - start, 0, count);
            add_mask(problem, head.number, first + row, start, visible, scores, work.line);
            const float factor = running[row].take(scores, visible, padded);
            if (start > begin)
                for (int64_t each = 0; each < width; ++each) work.sums[row * width + each] *= factor;
        }
        // In a separate loop, so that exponentials of many rows are vectorized.
        for (int64_t row = 0; row < rows; ++row) {
            float* scores = work.scores + row * problem.score_step;
#pragma omp simd
            for (int64_t each = 0; each < padded; ++each) scores[each] = exp(scores[each]);
        }
        for (int64_t row = 0; row < rows; ++row) running[row].add(work.scores + row * problem.score_step, padded);
        for (int64_t key = 0; key < count; key += depth_block)
            multiply_block(rows, width, std::min(depth_block, count - key), {work.scores + key, problem.score_step, 1},
                           head.values.data + (start + key) * head.values.step, head.values.step, work.sums, width, start + key > begin);
    }
    const auto &output = outputs[0], &logarithms = outputs[1];
    for (int64_t row = 0; row < rows; ++row) {
        float* line = work.sums + row * width;
        // As in eager: a fully masked row has the sum 1, though its result is 0.
        const bool is_blind = running[row].sum == 0;
        const float sum = is_blind ? 1 : running[row].sum, part = 1 / sum, logarithm = is_blind ? 0 : running[row].top + log(sum);
        for (int64_t each = 0; each < width; each += vector_lanes) store_vector(line + each, load_vector(line + each) * part);
        write_line(line, output, problem.start_of(output, head.number) + (first + row) * output.strides[2], output.strides[3], problem.depth);
        write_line(&logarithm, logarithms, problem.start_of(logarithms, head.number) + (first + row) * logarithms.strides[2], 1, 1);
    }
}

// The number of queries per block that minimizes the work of the busiest thread; larger blocks are preferred if equal.
int64_t evenly_shared(const attention_problem& problem, int64_t threads) {
    int64_t best = problem.block_queries, least = INT64_MAX;
    for (int64_t size = best; size >= query_strip; size -= query_strip) {
        const int64_t blocks = problem.heads * ((problem.queries + size - 1) / size);
        // Reading keys and values makes a block cost as much as a few more queries.
        const int64_t longest = (blocks + threads - 1) / threads * (size + query_strip / 4);
        if (longest < least) best = size, least = longest;
    }
    return best;
}

}  // namespace

// Inputs: query, key, value, and an optional mask. Outputs: the result, and the logarithm of each row's sum of exponentials.
int32_t attention(context* context, const strided* inputs, const strided* outputs, const int64_t* numbers) {
    attention_problem problem(inputs, inputs + 3, numbers);
    const head_layout layout(problem);
    const int64_t threads = omp_get_max_threads();
    // A thread that computes whole heads has their keys and values in its cache; few heads are divided by blocks of queries.
    const bool does_heads = problem.heads % threads == 0 || problem.heads >= 8 * threads;
    if (!does_heads) problem.block_queries = evenly_shared(problem, threads);
    const int64_t own = rounded_up(attention_workspace::size(problem), vector_lanes);
    float* memory = floats(context, (does_heads ? threads : problem.heads) * layout.size() + own * threads);
    if (!memory) return fail(PRECAST_FAILED, "no memory for attention");
    float* heads = memory + own * threads;
    const auto attend_block = [&](int64_t head, int64_t first, const float* place, const attention_workspace& work) {
        attend(problem, layout.of(problem, head, place), first, work, outputs);
    };
#pragma omp parallel if (problem.heads * problem.queries * problem.keys * problem.depth > 65536)
    {
        const attention_workspace work(problem, memory + own * omp_get_thread_num());
#pragma omp for schedule(dynamic)
        for (int64_t head = 0; head < problem.heads; ++head) {
            float* place = heads + (does_heads ? omp_get_thread_num() : head) * layout.size();
            layout.fill(problem, head, place, work.line);
            for (int64_t first = 0; does_heads && first < problem.queries; first += problem.block_queries) attend_block(head, first, place, work);
        }
        if (!does_heads) {
#pragma omp for collapse(2) schedule(dynamic)
            for (int64_t head = 0; head < problem.heads; ++head)
                for (int64_t first = 0; first < problem.queries; first += problem.block_queries)
                    attend_block(head, first, heads + head * layout.size(), work);
        }
    }
    return PRECAST_OK;
}

}  // namespace precast
