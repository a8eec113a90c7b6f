// Convolutions of few pixels by many non-constant filters: pixels are read in place, and filters are packed into panels piece by
// piece, each of which is used while it is in the cache. oneDNN would reorder all filters first, which takes longer than the
// products of 49 pixels.
#pragma once

#include <omp.h>

#include <vector>

#include "channel_finish.h"
#include "context.h"
#include "direct_filters.h"
#include "pixel_rows.h"
#include "plain_convolution.h"

namespace precast::direct {

// Sums of partial sums are more precise than one long sum.
constexpr int64_t part_depth = 128;
constexpr int64_t piece_elements = 64 << 10;

// A range of the depth for all taps, in parts.
struct piece {
    struct part {
        int64_t row;
        std::vector<segment> segments;
    };
    int64_t first, count;
    std::vector<part> parts;
};

// The depth from `first` on, for taps at `offsets`; contiguous ranges form one segment.
inline piece piece_of(const std::vector<int64_t>& offsets, int64_t first, int64_t count) {
    piece made{first, count, {{0, {}}}};
    int64_t filled = 0, row = 0;
    for (const int64_t offset : offsets)
        for (int64_t start = 0; start < count;) {
            if (filled == part_depth) made.parts.push_back({row, {}}), filled = 0;
            const int64_t length = std::min(count - start, part_depth - filled), place = offset + first + start;
            auto& segments = made.parts.back().segments;
            if (!segments.empty() && segments.back().offset + segments.back().depth == place)
                segments.back().depth += length;
            else
                segments.push_back({place, length});
            start += length, filled += length, row += length;
        }
    return made;
}

class convolution {
public:
    explicit convolution(const convolution_problem& problem)
        : problem(problem), loops(problem), x(*problem.operands[source]), w(*problem.operands[weights]), y(*problem.operands[result]) {}

    // Returns false if this is a different problem, if another algorithm is better, or if zero padding met a non-finite number.
    bool run(context& context, const strided* inputs, const epilogue& epilogue) {
        std::vector<strided> rows;
        if (!fits() || !pays() || !as_pixel_rows(y, inputs, epilogue, rows) || !finish.set(rows.data(), epilogue)) return false;
        const int64_t copy_elements = plan_source();
        bank = bank_of_weights();
        if (!bank.has_depths_together() && !bank.has_taps_together()) return false;
        plan_pieces();
        const int64_t thread_elements = rounded_up(panel_elements() + sum_elements(), vector_lanes);
        auto* scratch = reinterpret_cast<float*>(context.scratch((copy_elements + omp_get_max_threads() * thread_elements) * int64_t{sizeof(float)}));
        if (!scratch) return false;
        const float* image = copy_elements ? copy_source(scratch) : static_cast<const float*>(x.data);
        place_pixels(image);
        const panels all(loops.outputs);
        bool is_finite = true;
#pragma omp parallel for reduction(&& : is_finite) schedule(dynamic)
        for (int64_t panel = 0; panel < all.count(); ++panel)
            is_finite = convolve(all.first(panel), all.width(panel), scratch + copy_elements + omp_get_thread_num() * thread_elements) && is_finite;
        return is_finite;
    }

private:
    bool fits() const {
        if (!has_vectors || problem.wanted != result || problem.is_empty() || loops.groups != 1) return false;
        for (const auto* each : {&x, &w, &y})
            if (!each->is_single()) return false;
        return is_channels_last(y);
    }

    // Measured: with more pixels than these, or few filters, packing filters is a small part of the work. For a few pixels,
    // 1×1 filters are products with filters in place.
    bool pays() const {
        constexpr int64_t most = 512, many_filters = 32 << 10;
        const int64_t pixels = pixels_of(y), fewest = taps() == 1 ? 7 : 1, filters = taps() * loops.inputs * loops.outputs;
        return !w.is_constant && pixels >= fewest && pixels <= most && filters >= many_filters;
    }

    int64_t taps() const { return loops.kernel[0] * loops.kernel[1] * loops.kernel[2]; }

    // The size of a copy of the source with zero padding and contiguous channels; 0 if the source already has this layout.
    int64_t plan_source() {
        for (size_t dim = 0; dim < 3; ++dim) {
            const int64_t last = (loops.out[dim] - 1) * loops.stride[dim] + (loops.kernel[dim] - 1) * loops.dilation[dim];
            before[dim] = loops.padding[dim];
            padded[dim] = std::max(loops.in[dim] + before[dim], last + 1);
            has_edge = has_edge || padded[dim] > loops.in[dim];
        }
        const auto& strides = loops.strides[source];
        steps = {strides[0], strides[2], strides[3], strides[4]};
        if (!has_edge && (strides[1] == 1 || loops.inputs == 1)) return 0;
        int64_t extent = loops.inputs;
        for (size_t dim = 3; dim-- > 0;) steps[dim + 1] = extent, extent *= padded[dim];
        steps[0] = extent;
        return rounded_up(extent * loops.batch, vector_lanes);
    }

    const float* copy_source(float* copy) const {
        const auto& strides = loops.strides[source];
        const int64_t channels = loops.inputs, lines = padded[0] * padded[1];
#pragma omp parallel for
        for (int64_t line = 0; line < loops.batch * lines; ++line) {
            float* to = copy + line * steps[2];
            const int64_t n = line / lines, slice = line / padded[1] % padded[0] - before[0], row = line % padded[1] - before[1];
            std::fill(to, to + steps[2], 0.0f);
            if (row < 0 || row >= loops.in[1] || slice < 0 || slice >= loops.in[0]) continue;
            const float* from = static_cast<const float*>(x.data) + n * strides[0] + slice * strides[2] + row * strides[3];
            to += before[2] * channels;
            if (strides[4] == 1 && strides[1] != 1)
                turn(from, strides[1], loops.in[2], channels, to, channels);
            else
                for (int64_t column = 0; column < loops.in[2]; ++column, to += channels, from += strides[4])
                    for (int64_t channel = 0; channel < channels; ++channel) to[channel] = from[channel * strides[1]];
        }
        return copy;
    }

    filter_bank bank_of_weights() const {
        const auto& strides = loops.strides[weights];
        filter_bank found{static_cast<const float*>(w.data), loops.outputs, loops.inputs, strides[0], loops.inputs == 1 ? taps() : strides[1], {}};
        each_position(loops.kernel, [&](const auto& tap) { found.taps.push_back(tap[0] * strides[2] + tap[1] * strides[3] + tap[2] * strides[4]); });
        return found;
    }

    void plan_pieces() {
        std::vector<int64_t> offsets;
        each_position(loops.kernel, [&](const auto& tap) {
            int64_t offset = 0;
            for (size_t dim = 0; dim < 3; ++dim) offset += tap[dim] * loops.dilation[dim] * steps[dim + 1];
            offsets.push_back(offset);
        });
        const int64_t most = std::max(piece_elements / (taps() * most_vectors * vector_lanes) / vector_lanes * vector_lanes, vector_lanes);
        for (int64_t first = 0; first < loops.inputs; first += most)
            pieces.push_back(piece_of(offsets, first, std::min(most, loops.inputs - first)));
    }

    int64_t panel_elements() const { return pieces[0].count * taps() * most_vectors * vector_lanes; }
    int64_t sum_elements() const { return pixels_of(y) * most_vectors * vector_lanes; }

    // The address of each pixel's first tap.
    void place_pixels(const float* image) {
        for (int64_t n = 0; n < loops.batch; ++n)
            each_position(loops.out, [&](const auto& at) {
                const float* start = image + n * steps[0];
                for (size_t dim = 0; dim < 3; ++dim) start += at[dim] * loops.stride[dim] * steps[dim + 1];
                starts.push_back(start);
            });
    }

    // All pixels of some vectors of outputs. Returns whether the sums that zero padding could have spoilt are finite.
    bool convolve(int64_t first_vector, int64_t width, float* scratch) const {
        float *filters = scratch, *sums = scratch + panel_elements();
        const auto pixels = static_cast<int64_t>(starts.size());
        float_vector not_finite = {};
        for (const auto& piece : pieces) {
            fill_panel(bank, first_vector, width, piece.first, piece.count, filters);
            for (int64_t pixel = 0; pixel < pixels; pixel += tile_pixels) {
                const int64_t count = std::min<int64_t>(tile_pixels, pixels - pixel);
                float* totals = sums + pixel * width * vector_lanes;
                multiply_parts(piece, pixel, count, filters, width, totals);
                if (&piece == &pieces.back()) write(totals, first_vector, width, pixel, count, not_finite);
            }
        }
        return !has_edge || sum_of(not_finite) == 0;
    }

    void multiply_parts(const piece& piece, int64_t pixel, int64_t count, const float* filters, int64_t width, float* sums) const {
        bool adds = piece.first > 0;
        for (const auto& part : piece.parts) {
            const tile_work work{starts.data() + pixel, part.segments.data(), static_cast<int64_t>(part.segments.size()),
                                 filters + part.row * width * vector_lanes, sums, adds};
            switch (width) {
                case 1: multiply_some<1>(work, count); break;
                case 2: multiply_some<2>(work, count); break;
                case 3: multiply_some<3>(work, count); break;
            }
            adds = true;
        }
    }

    void write(const float* sums, int64_t first_vector, int64_t width, int64_t pixel, int64_t count, float_vector& not_finite) const {
        for (int64_t vector = 0; vector < width; ++vector) {
            const int64_t channel = (first_vector + vector) * vector_lanes, lanes = std::min(vector_lanes, loops.outputs - channel);
            const auto finishing = finish.of(channel, lanes);
            float_vector values[tile_pixels] = {};
            for (int64_t each = 0; each < count; ++each) {
                const float_vector sum = load_vector(sums + (each * width + vector) * vector_lanes);
                not_finite = multiply_add(sum, float_vector{}, not_finite);
                values[each] = finish.only_clamps() ? finishing.clamped(sum) : finishing(sum);
            }
            if (!finish.rest.is_empty()) finish.rest.run(values, {0, 0, pixel, channel, lanes}, count);
            float* to = static_cast<float*>(y.data) + pixel * loops.outputs + channel;
            for (int64_t each = 0; each < count; ++each) store_lanes(to + each * loops.outputs, values[each], lanes);
        }
    }

    const convolution_problem& problem;
    const plain_loops loops;
    const strided &x, &w, &y;
    channel_finish finish;
    filter_bank bank{};
    std::array<int64_t, 3> before{}, padded{};  // zeros before each dimension, and its size with zeros on both sides
    std::array<int64_t, 4> steps{};
    bool has_edge = false;
    std::vector<piece> pieces;
    std::vector<const float*> starts;
};

}  // namespace precast::direct
