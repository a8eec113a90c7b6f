// Input rows of a depthwise convolution, for some vectors of channels: in place, or, with a prologue, in a ring buffer of as many
// rows as filters are high.
#pragma once

#include <algorithm>

#include "channel_finish.h"

namespace precast {

// Pixels from `place` on, `columns` of them, some of which may be outside of the image.
class depthwise_source {
public:
    static constexpr int64_t most_vectors = 8;  // in a ring

    depthwise_source(const strided& image, const vector_place& place)
        : start(place.column), width(image.sizes[3]), pixel_step(image.strides[3]), vector_step(vector_lanes), image(image), place(place) {}

    // With the prologue `before` applied, in `ring`, whose memory holds `height` rows.
    depthwise_source(const strided& image, const vector_place& place, const channel_finish& before, float* ring, int64_t columns,
                     int64_t height, int64_t vectors)
        : start(0), width(columns), pixel_step(vector_lanes), vector_step(height * columns * vector_lanes), image(image), place(place),
          before(&before), ring(ring), height(height), vectors(vectors), first(std::max<int64_t>(place.column, 0)),
          left(std::min(first - place.column, columns)), count(std::max<int64_t>(std::min(image.sizes[3], place.column + columns) - first, 0)) {
        for (int64_t line = 0; line < vectors * height; ++line) {
            float *begin = ring + line * columns * vector_lanes, *end = begin + columns * vector_lanes;
            std::fill(begin, begin + left * vector_lanes, 0.0f);
            std::fill(begin + std::min(left + count, columns) * vector_lanes, end, 0.0f);
        }
        for (int64_t vector = 0; vector < vectors; ++vector) finishes[vector] = before.of(channel_of(vector), lanes_of(vector));
    }

    // Rows are requested in order, except for those in the ring.
    const float* line(int64_t row) {
        if (!before) return static_cast<const float*>(image.data) + place.n * image.strides[0] + row * image.strides[2] + place.channel;
        float* to = ring + row % height * width * vector_lanes;
        if (row >= filled) fill(row, to + left * vector_lanes);
        filled = std::max(filled, row + 1);
        return to;
    }

    // The first pixel of a line, their number, and the strides of pixels and of vectors.
    const int64_t start, width, pixel_step, vector_step;

private:
    int64_t channel_of(int64_t vector) const { return place.channel + vector * vector_lanes; }
    int64_t lanes_of(int64_t vector) const { return std::min(vector_lanes, image.sizes[1] - channel_of(vector)); }

    void fill(int64_t row, float* to) const {
        const int64_t step = image.strides[3], whole = std::min(vectors, (image.sizes[1] - place.channel) / vector_lanes);
        const float* from = static_cast<const float*>(image.data) + place.n * image.strides[0] + row * image.strides[2] + first * step +
                            place.channel;
        const auto clamp = finishes[0];
        for (int64_t column = 0; column < count; ++column, from += step, to += vector_lanes) {
            if (before->only_clamps())
                for (int64_t vector = 0; vector < whole; ++vector)
                    store_vector(to + vector * vector_step, clamp.clamped(load_vector(from + vector * vector_lanes)));
            else
                for (int64_t vector = 0; vector < whole; ++vector)
                    store_vector(to + vector * vector_step, finishes[vector](load_vector(from + vector * vector_lanes)));
            if (whole < vectors) store_vector(to + whole * vector_step, finishes[whole](load_lanes(from + whole * vector_lanes, lanes_of(whole))));
            for (int64_t vector = 0; vector < vectors && !before->rest.is_empty(); ++vector) {
                float_vector value[] = {load_vector(to + vector * vector_step)};
                before->rest.run(value, {place.n, row, first + column, channel_of(vector), lanes_of(vector)});
                store_vector(to + vector * vector_step, value[0]);
            }
        }
    }

    const strided& image;
    const vector_place place;
    const channel_finish* before = nullptr;
    float* ring = nullptr;
    // For the ring: `count` pixels of the image from `first` on start at its column `left`.
    int64_t height = 0, vectors = 0, first = 0, left = 0, count = 0, filled = 0;
    channel_finish::vectors finishes[most_vectors];
};

}  // namespace precast
