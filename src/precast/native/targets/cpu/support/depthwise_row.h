// One row of a depthwise convolution, channels last: several pixels of a vector of channels at a time, in registers.
#pragma once

#include <algorithm>

#include "channel_finish.h"

namespace precast {

// A row of results of some vectors of channels.
struct depthwise_row {
    static constexpr int64_t most_lines = 7;

    // The input rows for each row of filters: `width` pixels, of which `start` is the first tap of the first result. They have zero
    // padding on both sides.
    const float* lines[most_lines];
    int64_t line_count, pixel_step, vector_step, start, width;
    const float* filters;
    int64_t filter_step;
    float* to;
    int64_t to_step, columns, channels;
    const channel_finish& finish;
    vector_place place;

    template <int taps, int stride, int tile>
    void convolve() const {
        constexpr int64_t reach = (tile - 1) * stride + taps;
        const int64_t whole = channels / vector_lanes * vector_lanes;
        for (int64_t column = 0; column < columns; column += tile) {
            const int64_t first = start + column * stride, before = std::max<int64_t>(-first, 0), after = std::max<int64_t>(first + reach - width, 0);
            int64_t channel = 0;
            if (before == 0 && after == 0)
                channel = convolve_tiles<taps, stride, tile, inside>(column, 0, whole);
            else if ((before == 0 || before == taps / 2) && (after == 0 || after == taps / 2))
                channel = convolve_tiles<taps, stride, tile, at_edge>(column, 0, whole);
            convolve_tiles<taps, stride, tile, anywhere>(column, channel, channels);
        }
    }

private:
    // Which input pixels some results read: all inside, some beyond one or both ends, or arbitrary ones.
    // Vectors are full except for arbitrary ones.
    enum tile_kind { inside, at_edge, anywhere };

    // Results from `column` on.
    template <int taps, int stride, int tile, tile_kind kind>
    int64_t convolve_tiles(int64_t column, int64_t channel, int64_t end) const {
        constexpr int64_t reach = (tile - 1) * stride + taps;
        const int64_t first = start + column * stride;
        const bool misses_first = kind == at_edge && first < 0, misses_last = kind == at_edge && first + reach > width;
        const bool has_scale = finish.has_scale(), is_plain = kind != anywhere && finish.rest.is_empty() && column + tile <= columns;
        for (; channel < end; channel += vector_lanes) {
            const int64_t lanes = kind != anywhere ? vector_lanes : std::min(vector_lanes, channels - channel);
            const auto finishing = finish.of(place.channel + channel, lanes);
            float_vector values[tile];
#pragma GCC unroll 8
            for (auto& value : values) value = has_scale ? float_vector{} : finishing.shift;
            const float* filter = filters + channel;
            for (int64_t line = 0; line < line_count; ++line, filter += taps * filter_step) {
                const float* from = lines[line] + first * pixel_step + channel / vector_lanes * vector_step;
                float_vector factors[taps];
#pragma GCC unroll 8
                for (int64_t tap = 0; tap < taps; ++tap) factors[tap] = load_vector(filter + tap * filter_step);
#pragma GCC unroll 32
                for (int64_t pixel = 0; pixel < reach; ++pixel, from += pixel_step) {
                    if (pixel < taps / 2 && misses_first) continue;
                    if (pixel >= reach - taps / 2 && misses_last) continue;
                    if (kind == anywhere && (first + pixel < 0 || first + pixel >= width)) continue;
                    const float_vector value = kind != anywhere ? load_vector(from) : load_lanes(from, lanes);
#pragma GCC unroll 8
                    for (int64_t tap = 0; tap < taps; ++tap)
                        if (pixel >= tap && (pixel - tap) % stride == 0 && (pixel - tap) / stride < tile)
                            values[(pixel - tap) / stride] = multiply_add(value, factors[tap], values[(pixel - tap) / stride]);
                }
            }
            if (has_scale)
#pragma GCC unroll 8
                for (auto& value : values) value = multiply_add(value, finishing.scale, finishing.shift);
#pragma GCC unroll 8
            for (auto& value : values) value = finishing.clamped(value);
            float* at = to + channel + column * to_step;
            if (is_plain) {
#pragma GCC unroll 8
                for (int64_t each = 0; each < tile; ++each) store_vector(at + each * to_step, values[each]);
            } else {
                // Copied, so that the values used need not be in memory.
                float_vector copies[tile];
                std::copy(values, values + tile, copies);
                store_rest(copies, column, channel, lanes);
            }
        }
        return channel;
    }

    // Instantiated once for all callers: it is long.
    template <int tile>
    [[gnu::noinline]] void store_rest(float_vector (&values)[tile], int64_t column, int64_t channel, int64_t lanes) const {
        const int64_t valid = std::min<int64_t>(tile, columns - column);
        finish.rest.run(values, {place.n, place.row, place.column + column, place.channel + channel, lanes}, valid);
        for (int64_t each = 0; each < valid; ++each) store_lanes(to + channel + (column + each) * to_step, values[each], lanes);
    }
};

}  // namespace precast
