// Depthwise convolutions, channels last: each vector of channels has its own filters. The prologue and the epilogue are fused,
// so that images are traversed once.
//
// Filters read the source in place. With a prologue, its rows are first written, with zero padding on both sides, to a ring
// buffer of as many rows as filters are high, which stays in the first-level cache.
#pragma once

#include <omp.h>

#include <algorithm>

#include "context.h"
#include "depthwise_row.h"
#include "depthwise_source.h"
#include "plain_convolution.h"

namespace precast {

class depthwise_convolution_of {
public:
    depthwise_convolution_of(const convolution_problem& problem)
        : problem(problem), x(*problem.operands[source]), w(*problem.operands[weights]), y(*problem.operands[result]) {}

    // Returns false if this is a different problem.
    bool run(context& context, const strided* inputs, const epilogue& prologue, const epilogue& epilogue) const {
        channel_finish before, after;
        if (!has_vectors || !fits()) return false;
        if (!before.set(inputs, prologue) || !after.set(inputs, epilogue)) return false;
        const bool is_tiled_by_8 = rounded_up(y.sizes[3], 8) <= rounded_up(y.sizes[3], 7);
        const auto convolve = is_tiled_by_8 ? row_routine<8>() : row_routine<7>();
        if (!convolve) return false;
        const division parts(*this, is_tiled_by_8 ? 8 : 7, prologue.size > 0);
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
    static constexpr int64_t sizeof_float = sizeof(float), cache_bytes = 20 << 10, far_cache_bytes = 512 << 10;
    using row_routine_type = void (depthwise_row::*)() const;

    // The channels, rows and columns of the result that are computed together.
    struct division {
        bool has_ring;
        int64_t batch, vectors, block, blocks, band, bands, chunk, chunks, ring_columns, vector_bytes;

        division(const depthwise_convolution_of& of, int64_t tile, bool has_ring) : has_ring(has_ring) {
            const int64_t threads = omp_get_max_threads(), columns = rounded_up(of.y.sizes[3], tile), stride = of.problem.stride(1);
            const int64_t height = of.w.sizes[2], column_bytes = height * vector_lanes * sizeof_float;
            batch = of.y.sizes[0];
            vectors = (of.channels() + vector_lanes - 1) / vector_lanes;
            const int64_t most_columns = std::max<int64_t>(rounded_up((cache_bytes / column_bytes - of.w.sizes[3]) / stride, tile), 4 * tile);
            band = has_ring ? std::min(columns, most_columns) : columns;
            bands = (columns + band - 1) / band;
            ring_columns = (band - 1) * stride + of.w.sizes[3];
            vector_bytes = column_bytes * ring_columns;
            block = has_ring ? std::min(cache_bytes / vector_bytes, depthwise_source::most_vectors)
                             : far_cache_bytes / (column_bytes * of.x.sizes[3]);
            const bool has_few_rows = has_ring || batch * of.y.sizes[2] < 8 * threads;
            block = std::min(std::max<int64_t>(block, 1), has_few_rows ? (vectors + threads - 1) / threads : vectors);
            blocks = (vectors + block - 1) / block;
            // With too few parts for all threads, rows are divided too, though the rows at the seams are then read twice.
            const int64_t parts = batch * blocks * bands, wanted = std::min((threads + parts - 1) / parts, of.y.sizes[2]);
            chunk = (of.y.sizes[2] + wanted - 1) / wanted;
            chunks = (of.y.sizes[2] + chunk - 1) / chunk;
        }
        int64_t count() const { return batch * blocks * bands * chunks; }
        int64_t ring_bytes() const { return has_ring ? block * vector_bytes : 0; }
    };

    int64_t channels() const { return x.sizes[1]; }
    int64_t taps() const { return w.sizes[2] * w.sizes[3]; }

    bool fits() const {
        if (problem.spatial() != 2 || problem.is_empty() || problem.groups() != channels() || w.sizes[0] != channels()) return false;
        if (w.sizes[2] > depthwise_row::most_lines || problem.dilation(0) != 1 || problem.dilation(1) != 1) return false;
        for (const auto* each : {&x, &w, &y})
            if (!each->is_single()) return false;
        return channels() == 1 || (x.strides[1] == 1 && y.strides[1] == 1);
    }

    template <int tile>
    row_routine_type row_routine() const {
        const int64_t stride = problem.stride(1);
        if (stride != 1 && stride != 2) return nullptr;
        switch (w.sizes[3]) {
            case 3: return stride == 1 ? &depthwise_row::convolve<3, 1, tile> : &depthwise_row::convolve<3, 2, tile>;
            case 5: return stride == 1 ? &depthwise_row::convolve<5, 1, tile> : &depthwise_row::convolve<5, 2, tile>;
            case 7: return stride == 1 ? &depthwise_row::convolve<7, 1, tile> : &depthwise_row::convolve<7, 2, tile>;
        }
        return nullptr;
    }

    // By tap, then by channel.
    void pack(float* to) const {
        const int64_t step = rounded_up(channels(), vector_lanes);
        const auto* from = static_cast<const float*>(w.data);
        for (int64_t row = 0; row < w.sizes[2]; ++row)
            for (int64_t column = 0; column < w.sizes[3]; ++column, to += step) {
                const float* tap = from + row * w.strides[2] + column * w.strides[3];
                for (int64_t channel = 0; channel < channels(); ++channel) to[channel] = tap[channel * w.strides[0]];
                std::fill(to + channels(), to + step, 0.0f);
            }
    }
    // Constant filters are packed on first use.
    float* packed(context& context, int64_t bytes) const {
        std::vector<int64_t> key{-1, static_cast<int64_t>(reinterpret_cast<intptr_t>(w.data))};
        key.insert(key.end(), w.sizes, w.sizes + 4);
        key.insert(key.end(), w.strides, w.strides + 4);
        return reinterpret_cast<float*>(context.packed.find(key, bytes, [&](char* place) {
            pack(reinterpret_cast<float*>(place));
            return true;
        }));
    }

    void run_part(const division& parts, int64_t part, const float* filters, const channel_finish& before,
                  const channel_finish& after, row_routine_type convolve, float* ring) const {
        const int64_t band = part % parts.bands * parts.band, chunk = part / parts.bands % parts.chunks * parts.chunk;
        const int64_t block = part / parts.bands / parts.chunks % parts.blocks * parts.block, n = part / parts.bands / parts.chunks / parts.blocks;
        const int64_t block_end = std::min(block + parts.block, parts.vectors), columns = std::min(parts.band, y.sizes[3] - band);
        const int64_t height = w.sizes[2], filter_step = rounded_up(channels(), vector_lanes), channel = block * vector_lanes;
        const int64_t start = band * problem.stride(1) - problem.padding(1);
        const vector_place corner{n, 0, start, channel};
        depthwise_source source = parts.has_ring ? depthwise_source(x, corner, before, ring, parts.ring_columns, height, block_end - block)
                                                 : depthwise_source(x, corner);
        depthwise_row work{{},      0,       source.pixel_step, source.vector_step, source.start, source.width, nullptr, filter_step,
                           nullptr, y.strides[3], columns, std::min(channels(), block_end * vector_lanes) - channel, after, {n, 0, band, channel}};
        for (int64_t row = chunk; row < std::min(chunk + parts.chunk, y.sizes[2]); ++row) {
            const int64_t top = row * problem.stride(0) - problem.padding(0), first_tap = std::max<int64_t>(-top, 0);
            work.line_count = std::max<int64_t>(std::min(height, x.sizes[2] - top) - first_tap, 0);
            for (int64_t tap = 0; tap < work.line_count; ++tap) work.lines[tap] = source.line(top + first_tap + tap);
            work.filters = filters + first_tap * w.sizes[3] * filter_step + channel;
            work.to = static_cast<float*>(y.data) + n * y.strides[0] + row * y.strides[2] + band * y.strides[3] + channel;
            work.place.row = row;
            (work.*convolve)();
        }
    }

    const convolution_problem& problem;
    const strided &x, &w, &y;
};

}  // namespace precast
