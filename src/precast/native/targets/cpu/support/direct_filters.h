// Packs filters of a convolution into panels: some vectors of outputs, tap by tap, along the depth.
#pragma once

#include <algorithm>
#include <vector>

#include "direct_tile.h"
#include "precast_tiles.h"

namespace precast::direct {

// Unpacked filters. For each output, either the depth of a tap is contiguous, or the taps of a depth are.
struct filter_bank {
    const float* data;
    int64_t outputs, depth, output_step, depth_step;
    std::vector<int64_t> taps;  // where each begins

    int64_t tap_count() const { return static_cast<int64_t>(taps.size()); }
    bool has_depths_together() const { return depth_step == 1; }
    bool has_taps_together() const {
        for (int64_t tap = 0; tap < tap_count(); ++tap)
            if (taps[static_cast<size_t>(tap)] != tap) return false;
        return depth_step == tap_count();
    }
};

// The number of vectors of outputs that are computed together: three, or two, so that no single one remains.
class panels {
public:
    explicit panels(int64_t outputs) : vectors((outputs + vector_lanes - 1) / vector_lanes) {}

    int64_t count() const { return (vectors + most_vectors - 1) / most_vectors; }
    int64_t first(int64_t panel) const { return (panel * vectors + count() - 1) / count(); }
    int64_t width(int64_t panel) const { return first(panel + 1) - first(panel); }

private:
    const int64_t vectors;
};

// Transposes lines of `length` numbers at stride `step`; row number k is written to `place(k)`.
template <class Place>
void turn_lines(const float* from, int64_t step, int64_t lines, int64_t length, Place place) {
    for (int64_t k = 0; k < length; k += vector_lanes) {
        const int64_t lanes = std::min(vector_lanes, length - k);
        float_vector square[vector_lanes];
        for (int64_t each = 0; each < vector_lanes; ++each)
            square[each] = each < lines ? load_lanes(from + each * step + k, lanes) : float_vector{};
        transpose<vector_lanes>(square);
        for (int64_t each = 0; each < lanes; ++each) store_vector(place(k + each), square[each]);
    }
}

// A range of the depth of a panel of `width` vectors; missing outputs are 0.
inline void fill_panel(const filter_bank& bank, int64_t first_vector, int64_t width, int64_t first, int64_t count, float* to) {
    for (int64_t vector = 0; vector < width; ++vector) {
        const int64_t output = (first_vector + vector) * vector_lanes, lines = std::min(vector_lanes, bank.outputs - output);
        const float* from = bank.data + output * bank.output_step + first * bank.depth_step;
        const auto place = [&](int64_t tap, int64_t depth) { return to + ((tap * count + depth) * width + vector) * vector_lanes; };
        if (bank.has_depths_together()) {
            for (int64_t tap = 0; tap < bank.tap_count(); ++tap)
                turn_lines(from + bank.taps[static_cast<size_t>(tap)], bank.output_step, lines, count,
                           [&](int64_t depth) { return place(tap, depth); });
            continue;
        }
        int64_t tap = 0, depth = 0;
        turn_lines(from, bank.output_step, lines, count * bank.tap_count(), [&](int64_t) {
            float* found = place(tap, depth);
            if (++tap == bank.tap_count()) tap = 0, ++depth;
            return found;
        });
    }
}

}  // namespace precast::direct
