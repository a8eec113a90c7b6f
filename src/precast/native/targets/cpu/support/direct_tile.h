// Some pixels of a convolution by some vectors of filters, with all sums in registers.
#pragma once

#include "vectors.h"

namespace precast::direct {

constexpr int tile_pixels = vector_lanes == 16 ? 8 : 4, most_vectors = 3;

// Contiguous numbers, relative to a pixel's first tap.
struct segment {
    int64_t offset, depth;
};

// Pixels by the addresses of their first taps, and packed filters; with `adds`, products are added to the existing sums.
struct tile_work {
    const float* const* from;
    const segment* segments;
    int64_t segment_count;
    const float* filters;
    float* sums;
    bool adds;
};

template <int pixels, int vectors>
__attribute__((noinline)) void multiply(const tile_work& work) {
    const float* filters = work.filters;
    float_vector totals[pixels][vectors] = {};
    for (int64_t number = 0; number < work.segment_count; ++number) {
        const float* at[pixels];
#pragma GCC unroll 8
        for (int pixel = 0; pixel < pixels; ++pixel) at[pixel] = work.from[pixel] + work.segments[number].offset;
        const int64_t depth = work.segments[number].depth;
#pragma GCC unroll 1
        for (int64_t k = 0; k < depth; ++k, filters += vectors * vector_lanes) {
            float_vector line[vectors];
#pragma GCC unroll 3
            for (int each = 0; each < vectors; ++each) line[each] = load_vector(filters + each * vector_lanes);
#pragma GCC unroll 8
            for (int pixel = 0; pixel < pixels; ++pixel) {
                const float_vector factor = same_in_all(at[pixel][k]);
#pragma GCC unroll 3
                for (int each = 0; each < vectors; ++each) totals[pixel][each] = multiply_add(factor, line[each], totals[pixel][each]);
            }
        }
    }
#pragma GCC unroll 8
    for (int pixel = 0; pixel < pixels; ++pixel)
#pragma GCC unroll 3
        for (int each = 0; each < vectors; ++each) {
            float* place = work.sums + (pixel * vectors + each) * vector_lanes;
            store_vector(place, work.adds ? load_vector(place) + totals[pixel][each] : totals[pixel][each]);
        }
}

// Any number of pixels up to a tile's.
template <int vectors>
void multiply_some(tile_work work, int64_t pixels) {
    constexpr int64_t half = tile_pixels / 2;
    const auto skip = [&](int64_t count) { work.from += count, work.sums += count * vectors * vector_lanes, pixels -= count; };
    if (pixels == tile_pixels) return multiply<tile_pixels, vectors>(work);
    if (pixels >= half) multiply<half, vectors>(work), skip(half);
    for (; pixels > 0; skip(1)) multiply<1, vectors>(work);
}

}  // namespace precast::direct
