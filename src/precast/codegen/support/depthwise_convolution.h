// Depthwise convolutions, channels last: each vector of channels has filters of its own. What is done to the source when it
// is read, and to the result before it is written, is done on the way, so that images are gone over once.
//
// Rows of the source come, with what is done to them and with zeros beside them, into a ring of as many rows as filters are
// high, which stays in the nearest cache; from there several pixels of a row are computed at a time, in registers.
#pragma once

#include <omp.h>

#include <algorithm>
#include <limits>

#include "context.h"
#include "plain_convolution.h"
#include "vector_epilogue.h"

namespace precast {

// Elements times a scale, plus a shift, both by channel, then clamped; then what else there is to do.
class depthwise_finish {
public:
    // False if an operand does not lie so that vectors of it can be read.
    bool set(const strided* inputs, const epilogue& epilogue) {
        int32_t next = 0;
        scale = by_channel(inputs, epilogue, finish_kind::mul, next);
        shift = by_channel(inputs, epilogue, finish_kind::add, next);
        if (next < epilogue.size) {
            const auto kind = epilogue.steps[next].kind;
            if (kind == finish_kind::relu || kind == finish_kind::relu6) low = 0, ++next;
            if (kind == finish_kind::relu6) high = 6;
        }
        return rest.set(inputs, epilogue, next);
    }

    // The same for one vector of channels.
    struct vectors {
        float_vector scale, shift, low, high;

        float_vector operator()(float_vector value) const { return clamped(multiply_add(value, scale, shift)); }
        float_vector clamped(float_vector value) const { return at_most(at_least(value, low), high); }
    };
    vectors of(int64_t channel, int64_t lanes) const {
        return {scale ? load_lanes(scale + channel, lanes) : same_in_all(1), shift ? load_lanes(shift + channel, lanes) : float_vector{},
                same_in_all(low), same_in_all(high)};
    }
    bool only_clamps() const { return !scale && !shift; }
    bool has_scale() const { return scale != nullptr; }

    vector_epilogue rest;

private:
    static const float* by_channel(const strided* inputs, const epilogue& epilogue, finish_kind kind, int32_t& next) {
        if (next >= epilogue.size || epilogue.steps[next].kind != kind) return nullptr;
        const auto& operand = inputs[epilogue.steps[next].operand];
        for (int dim = 0; dim < operand.rank; ++dim)
            if (operand.sizes[dim] > 1 && operand.strides[dim] != (dim == 1 ? 1 : 0)) return nullptr;
        ++next;
        return static_cast<const float*>(operand.data);
    }

    const float *scale = nullptr, *shift = nullptr;
    float low = -std::numeric_limits<float>::infinity(), high = std::numeric_limits<float>::infinity();
};

class depthwise_convolution_of {
public:
    depthwise_convolution_of(const convolution_problem& problem)
        : problem(problem), x(*problem.operands[source]), w(*problem.operands[weights]), y(*problem.operands[result]) {}

    // False if this is another problem, or if oneDNN computes it faster.
    bool run(context& context, const strided* inputs, const epilogue& prologue, const epilogue& epilogue) const {
        depthwise_finish before, after;
        if (!has_vectors || !fits() || !pays(prologue, epilogue)) return false;
        if (!before.set(inputs, prologue) || !after.set(inputs, epilogue)) return false;
        const bool is_tiled_by_8 = rounded_up(y.sizes[3], 8) <= rounded_up(y.sizes[3], 7);
        const auto convolve = is_tiled_by_8 ? row_routine<8>() : row_routine<7>();
        if (!convolve) return false;
        const division parts(*this, is_tiled_by_8 ? 8 : 7);
        const int64_t filter_bytes = taps() * rounded_up(channels(), vector_lanes) * sizeof_float;
        char* scratch = context.scratch(omp_get_max_threads() * parts.ring_bytes() + filter_bytes);
        float* filters = w.is_constant ? packed(context, filter_bytes) : reinterpret_cast<float*>(scratch);
        if (!scratch || !filters) return false;
        if (!w.is_constant) pack(filters);
        char* rings = scratch + filter_bytes;
#pragma omp parallel for if (parts.count() > 1)
        for (int64_t part = 0; part < parts.count(); ++part)
            run_part(parts, part, filters, before, after, convolve, reinterpret_cast<float*>(rings + omp_get_thread_num() * parts.ring_bytes()));
        return true;
    }

private:
    static constexpr int64_t sizeof_float = sizeof(float), cache_bytes = 20 << 10, most_rows = 7, most_vectors = 8;

    // A row of results of some vectors of channels. `lines` are the rows of the ring that taps fall on.
    struct row_work {
        const float* lines[most_rows];
        int64_t line_count, line_step;
        const float* filters;
        int64_t filter_step;
        float* to;
        int64_t to_step, columns, vectors, channels;
        const depthwise_finish& finish;
        const depthwise_finish::vectors* finishes;
        vector_place place;
    };
    using row_routine_type = void (*)(const row_work&);

    // Which channels, rows and columns of the result are computed together.
    struct division {
        int64_t vectors, block, ring_columns, ring_rows, band, blocks, bands, chunks, chunk, batch;

        division(const depthwise_convolution_of& of, int64_t tile) {
            const int64_t threads = omp_get_max_threads(), columns = rounded_up(of.y.sizes[3], tile), stride = of.problem.stride(1);
            vectors = (of.channels() + vector_lanes - 1) / vector_lanes;
            ring_rows = of.w.sizes[2];
            const int64_t most_columns = cache_bytes / (ring_rows * vector_lanes * sizeof_float) - of.w.sizes[3];
            band = std::min(columns, std::max<int64_t>(rounded_up(most_columns / stride, tile), 4 * tile));
            ring_columns = (band - 1) * stride + of.w.sizes[3];
            block = std::min(std::max<int64_t>(cache_bytes / vector_bytes(), 1), most_vectors);
            block = std::min(block, (vectors + threads - 1) / threads);
            blocks = (vectors + block - 1) / block;
            bands = (columns + band - 1) / band;
            batch = of.y.sizes[0];
            // Where there are too few parts for all threads, rows are divided too, though what two share is then read twice.
            const int64_t parts = batch * blocks * bands, wanted = std::min((threads + parts - 1) / parts, of.y.sizes[2]);
            chunk = (of.y.sizes[2] + wanted - 1) / wanted;
            chunks = (of.y.sizes[2] + chunk - 1) / chunk;
        }
        int64_t count() const { return batch * blocks * bands * chunks; }
        int64_t vector_elements() const { return ring_rows * ring_columns * vector_lanes; }
        int64_t vector_bytes() const { return vector_elements() * sizeof_float; }
        int64_t ring_bytes() const { return block * vector_bytes(); }
    };

    int64_t channels() const { return x.sizes[1]; }
    int64_t taps() const { return w.sizes[2] * w.sizes[3]; }

    bool fits() const {
        if (problem.spatial() != 2 || problem.is_empty() || problem.groups() != channels() || w.sizes[0] != channels()) return false;
        if (w.sizes[2] > most_rows || problem.dilation(0) != 1 || problem.dilation(1) != 1) return false;
        for (const auto* each : {&x, &w, &y})
            if (each->dtype.code != 2 || each->dtype.bits != 32) return false;
        return channels() == 1 || (x.strides[1] == 1 && y.strides[1] == 1);
    }

    // oneDNN is faster with narrow filters, but cannot take all along.
    bool pays(const epilogue& prologue, const epilogue& epilogue) const {
        bool is_more = w.sizes[3] > 3 || prologue.size > 0;
        for (int32_t each = 0; each < epilogue.size; ++each) is_more |= epilogue.steps[each].kind == finish_kind::relu6;
        return is_more;
    }

    template <int tile>
    row_routine_type row_routine() const {
        const int64_t stride = problem.stride(1);
        if (stride != 1 && stride != 2) return nullptr;
        switch (w.sizes[3]) {
            case 3: return stride == 1 ? convolve_row<3, 1, tile> : convolve_row<3, 2, tile>;
            case 5: return stride == 1 ? convolve_row<5, 1, tile> : convolve_row<5, 2, tile>;
            case 7: return stride == 1 ? convolve_row<7, 1, tile> : convolve_row<7, 2, tile>;
        }
        return nullptr;
    }

    // By tap, then by channel.
    void pack(float* to) const {
        const int64_t step = rounded_up(channels(), vector_lanes);
        std::fill(to, to + taps() * step, 0.0f);
        for (int64_t channel = 0; channel < channels(); ++channel)
            for (int64_t tap = 0; tap < taps(); ++tap)
                to[tap * step + channel] = static_cast<const float*>(
                    w.data)[channel * w.strides[0] + tap / w.sizes[3] * w.strides[2] + tap % w.sizes[3] * w.strides[3]];
    }
    // Constant filters are packed when they are met first.
    float* packed(context& context, int64_t bytes) const {
        std::vector<int64_t> key{-1, static_cast<int64_t>(reinterpret_cast<intptr_t>(w.data))};
        key.insert(key.end(), w.sizes, w.sizes + 4);
        key.insert(key.end(), w.strides, w.strides + 4);
        return reinterpret_cast<float*>(context.packed.find(key, bytes, [&](char* place) {
            pack(reinterpret_cast<float*>(place));
            return true;
        }));
    }

    void run_part(const division& parts, int64_t part, const float* filters, const depthwise_finish& before,
                  const depthwise_finish& after, row_routine_type convolve, float* ring) const {
        const int64_t band = part % parts.bands * parts.band, chunk = part / parts.bands % parts.chunks * parts.chunk;
        const int64_t block = part / parts.bands / parts.chunks % parts.blocks * parts.block, n = part / parts.bands / parts.chunks / parts.blocks;
        const int64_t block_end = std::min(block + parts.block, parts.vectors), columns = std::min(parts.band, y.sizes[3] - band);
        const int64_t height = w.sizes[2], line_size = parts.ring_columns * vector_lanes, filter_step = rounded_up(channels(), vector_lanes);
        // Columns of the source from `first` on, which is column `left` of the ring; beside them are zeros.
        const int64_t start = band * problem.stride(1) - problem.padding(1), first = std::max<int64_t>(start, 0), left = first - start;
        const int64_t width = std::max<int64_t>(std::min(x.sizes[3], start + parts.ring_columns) - first, 0);
        for (int64_t line = 0; line < (block_end - block) * height; ++line) {
            std::fill_n(ring + line * line_size, std::min(left, parts.ring_columns) * vector_lanes, 0.0f);
            std::fill(ring + line * line_size + std::min(left + width, parts.ring_columns) * vector_lanes, ring + (line + 1) * line_size, 0.0f);
        }
        depthwise_finish::vectors sources[most_vectors], results[most_vectors];
        for (int64_t vector = block; vector < block_end; ++vector) {
            sources[vector - block] = before.of(vector * vector_lanes, lanes_of(vector));
            results[vector - block] = after.of(vector * vector_lanes, lanes_of(vector));
        }
        const int64_t channel = block * vector_lanes;
        row_work work{{}, 0, parts.vector_elements(), nullptr, filter_step, nullptr, y.strides[3], columns, block_end - block,
                      std::min(channels(), block_end * vector_lanes) - channel, after, results, {n, 0, band, channel}};
        int64_t filled = 0;
        for (int64_t row = chunk; row < std::min(chunk + parts.chunk, y.sizes[2]); ++row) {
            const int64_t top = row * problem.stride(0) - problem.padding(0), bottom = std::min(top + height, x.sizes[2]);
            filled = std::max(filled, top);
            for (; filled < bottom; ++filled)
                fill({n, filled, first, channel}, width, block_end - block, before, sources, parts.vector_elements(),
                     ring + filled % height * line_size + left * vector_lanes);
            const int64_t first_tap = std::max<int64_t>(-top, 0), last_tap = std::min(height, x.sizes[2] - top);
            work.line_count = std::max<int64_t>(last_tap - first_tap, 0);
            for (int64_t tap = 0; tap < work.line_count; ++tap) work.lines[tap] = ring + (top + first_tap + tap) % height * line_size;
            work.filters = filters + first_tap * w.sizes[3] * filter_step + channel;
            work.to = static_cast<float*>(y.data) + n * y.strides[0] + row * y.strides[2] + band * y.strides[3] + channel;
            work.place.row = row;
            convolve(work);
        }
    }

    int64_t lanes_of(int64_t vector) const { return std::min(vector_lanes, channels() - vector * vector_lanes); }

    // Pixels of one row and of some vectors of channels into the ring, as they lie in memory.
    void fill(vector_place place, int64_t width, int64_t vectors, const depthwise_finish& before,
              const depthwise_finish::vectors* finishes, int64_t vector_step, float* to) const {
        const int64_t step = x.strides[3];
        const float* from = static_cast<const float*>(x.data) + place.n * x.strides[0] + place.row * x.strides[2] + place.column * step +
                            place.channel;
        const int64_t whole = std::min(vectors, (channels() - place.channel) / vector_lanes);
        const auto clamp = finishes[0];
        if (whole == 1 && before.only_clamps()) {
            for (int64_t column = 0; column < width; ++column)
                store_vector(to + column * vector_lanes, clamp.clamped(load_vector(from + column * step)));
        } else if (before.only_clamps()) {
            for (int64_t column = 0; column < width; ++column)
                for (int64_t vector = 0; vector < whole; ++vector)
                    store_vector(to + vector * vector_step + column * vector_lanes,
                                 clamp.clamped(load_vector(from + column * step + vector * vector_lanes)));
        } else {
            for (int64_t column = 0; column < width; ++column)
                for (int64_t vector = 0; vector < whole; ++vector)
                    store_vector(to + vector * vector_step + column * vector_lanes,
                                 finishes[vector](load_vector(from + column * step + vector * vector_lanes)));
        }
        for (int64_t column = 0; column < width && whole < vectors; ++column)
            store_vector(to + whole * vector_step + column * vector_lanes,
                         finishes[whole](load_lanes(from + column * step + whole * vector_lanes, channels() % vector_lanes)));
        for (int64_t column = 0; column < width && !before.rest.is_empty(); ++column, ++place.column)
            for (int64_t vector = 0; vector < vectors; ++vector) {
                float* at = to + vector * vector_step + column * vector_lanes;
                float_vector value[] = {load_vector(at)};
                const int64_t channel = place.channel + vector * vector_lanes;
                before.rest.run(value, {place.n, place.row, place.column, channel, std::min(vector_lanes, channels() - channel)});
                store_vector(at, value[0]);
            }
    }

    template <int width, int stride, int tile>
    static void convolve_row(const row_work& work) {
        for (int64_t vector = 0; vector < work.vectors; ++vector) {
            const auto finish = work.finishes[vector];
            const int64_t lanes = std::min(vector_lanes, work.channels - vector * vector_lanes);
            const bool is_plain = work.finish.rest.is_empty() && lanes == vector_lanes, has_scale = work.finish.has_scale();
            const float_vector start = has_scale ? float_vector{} : finish.shift;
            const float* filters = work.filters + vector * vector_lanes;
            float* to = work.to + vector * vector_lanes;
            for (int64_t column = 0; column < work.columns; column += tile) {
                float_vector values[tile];
                for (auto& value : values) value = start;
                const int64_t place = vector * work.line_step + column * stride * vector_lanes;
                for (int64_t line = 0; line < work.line_count; ++line) {
                    const float *from = work.lines[line] + place, *filter = filters + line * width * work.filter_step;
#pragma GCC unroll 8
                    for (int64_t tap = 0; tap < width; ++tap) {
                        const float_vector factor = load_vector(filter + tap * work.filter_step);
#pragma GCC unroll 8
                        for (int64_t each = 0; each < tile; ++each)
                            values[each] = multiply_add(load_vector(from + (each * stride + tap) * vector_lanes), factor, values[each]);
                    }
                }
                if (has_scale)
                    for (auto& value : values) value = multiply_add(value, finish.scale, finish.shift);
                for (auto& value : values) value = finish.clamped(value);
                if (is_plain && column + tile <= work.columns) {
                    for (int64_t each = 0; each < tile; ++each) store_vector(to + (column + each) * work.to_step, values[each]);
                } else {
                    // Copied, so that those that are computed with need not lie in memory.
                    float_vector copies[tile];
                    std::copy(values, values + tile, copies);
                    store_rest(copies, work, vector, column);
                }
            }
        }
    }

    template <int tile>
    static void store_rest(float_vector (&values)[tile], const row_work& work, int64_t vector, int64_t column) {
        auto place = work.place;
        place.column += column;
        place.channel += vector * vector_lanes;
        place.lanes = std::min(vector_lanes, work.channels - vector * vector_lanes);
        const int64_t valid = std::min<int64_t>(tile, work.columns - column);
        work.finish.rest.run(values, place, valid);
        float* to = work.to + vector * vector_lanes + column * work.to_step;
        for (int64_t each = 0; each < valid; ++each) store_lanes(to + each * work.to_step, values[each], place.lanes);
    }

    const convolution_problem& problem;
    const strided &x, &w, &y;
};

}  // namespace precast
