// Packs convolution weights into blocks of channels, and back: oneDNN's own reorders are far slower, and for non-constant
// weights they run in every call.
//
// Packing: from [outputs][inputs][taps] to [outputs / block][taps][inputs][block], where a partial last block is padded with
// zeros. Unpacking (gradients): from [outputs / 16][inputs / 16][taps][16 inputs][16 outputs] to [outputs][inputs][taps].
#pragma once

#include <algorithm>
#include <cstring>
#include <vector>

#include "onednn.h"
#include "precast_tiles.h"

namespace precast {

// A layout of oneDNN's as plain numbers.
struct layout_facts {
    int64_t bytes = 0;
    std::vector<int64_t> sizes, padded, strides, block_sizes, block_dims;
    dnnl_data_type_t type = dnnl_data_type_undef;
    std::vector<int64_t> key() const {
        std::vector<int64_t> key{bytes, type, static_cast<int64_t>(sizes.size())};
        for (const auto* each : {&padded, &strides, &block_sizes, &block_dims}) key.insert(key.end(), each->begin(), each->end());
        return key;
    }
};

inline layout_facts layout_of(const_dnnl_memory_desc_t layout) {
    int rank = 0, blocks = 0;
    dnnl_dims_t *sizes = nullptr, *padded = nullptr, *strides = nullptr, *block_sizes = nullptr, *block_dims = nullptr;
    layout_facts facts;
    dnnl_memory_desc_query(layout, dnnl_query_ndims_s32, &rank);
    dnnl_memory_desc_query(layout, dnnl_query_data_type, &facts.type);
    dnnl_memory_desc_query(layout, dnnl_query_dims, &sizes);
    dnnl_memory_desc_query(layout, dnnl_query_padded_dims, &padded);
    dnnl_memory_desc_query(layout, dnnl_query_strides, &strides);
    dnnl_memory_desc_query(layout, dnnl_query_inner_nblks_s32, &blocks);
    dnnl_memory_desc_query(layout, dnnl_query_inner_blks, &block_sizes);
    dnnl_memory_desc_query(layout, dnnl_query_inner_idxs, &block_dims);
    facts.bytes = static_cast<int64_t>(dnnl_memory_desc_get_size(layout));
    facts.sizes.assign(*sizes, *sizes + rank);
    facts.padded.assign(*padded, *padded + rank);
    facts.strides.assign(*strides, *strides + rank);
    facts.block_sizes.assign(*block_sizes, *block_sizes + blocks);
    facts.block_dims.assign(*block_dims, *block_dims + blocks);
    return facts;
}

class packing {
public:
    // The conversion from `given` to `wanted`, or back for an output; does nothing for layouts other than those above.
    static packing between(const_dnnl_memory_desc_t given, const_dnnl_memory_desc_t wanted, bool is_output) {
        const auto plain = layout_of(given), blocked = layout_of(wanted);
        const size_t rank = plain.sizes.size();
        packing made;
        if (plain.type != dnnl_f32 || blocked.type != dnnl_f32 || rank < 3 || rank > 5 || !plain.block_sizes.empty()) return made;
        int64_t taps = 1;
        for (size_t dim = rank - 1; dim >= 2; --dim) {
            if (plain.strides[dim] != taps) return made;
            taps *= plain.sizes[dim];
        }
        const int64_t outputs = plain.sizes[0], inputs = plain.sizes[1];
        if (plain.strides[1] != taps || plain.strides[0] != taps * inputs) return made;
        const int64_t block = is_output ? block_out(blocked, inputs, taps) : block_into(blocked, inputs, taps);
        if (block) made.outputs = outputs, made.inputs = inputs, made.taps = taps, made.block = block, made.is_output = is_output;
        return made;
    }

    explicit operator bool() const { return block != 0; }

    void run(const float* from, float* to) const { is_output ? unpack(from, to) : pack(from, to); }

private:
    static bool has_spatial_strides(const layout_facts& layout, int64_t step) {
        for (size_t dim = layout.sizes.size() - 1; dim >= 2; --dim) {
            if (layout.strides[dim] != step) return false;
            step *= layout.sizes[dim];
        }
        return true;
    }

    // The number of channels in a block; 0 if this is another layout.
    static int64_t block_into(const layout_facts& to, int64_t inputs, int64_t taps) {
        if (to.block_sizes.size() != 1 || to.block_dims[0] != 0 || to.block_sizes[0] % lanes != 0 || to.padded[1] != inputs) return 0;
        const int64_t block = to.block_sizes[0];
        const bool is_known = to.strides[1] == block && to.strides[0] == block * inputs * taps && has_spatial_strides(to, block * inputs);
        return is_known ? block : 0;
    }
    static int64_t block_out(const layout_facts& from, int64_t inputs, int64_t taps) {
        if (from.block_sizes != std::vector<int64_t>{lanes, lanes} || from.block_dims != std::vector<int64_t>{1, 0}) return 0;
        if (from.padded != from.sizes || from.strides[1] != lanes * lanes * taps || from.strides[0] != lanes * inputs * taps) return 0;
        return has_spatial_strides(from, lanes * lanes) ? lanes : 0;
    }

    void unpack(const float* from, float* to) const {
        const int64_t row = inputs * taps;
#pragma omp parallel for if (outputs * row > 65536)
        for (int64_t first = 0; first < outputs; first += lanes) {
            std::vector<float> tile(static_cast<size_t>(lanes * lanes * taps));
            for (int64_t input = 0; input < inputs; input += lanes) {
                const float* block = from + first * row + input * lanes * taps;
                for (int64_t tap = 0; tap < taps; ++tap) {
                    vector lines[lanes];
                    std::memcpy(lines, block + tap * lanes * lanes, sizeof lines);
                    transpose(lines);
                    if (taps == 1)
                        std::memcpy(tile.data(), lines, sizeof lines);
                    else
                        for (int64_t each = 0; each < lanes * lanes; ++each)
                            tile[static_cast<size_t>(each * taps + tap)] = lines[each / lanes][each % lanes];
                }
                for (int64_t each = 0; each < lanes; ++each)
                    std::memcpy(to + (first + each) * row + input * taps, tile.data() + each * lanes * taps,
                                static_cast<size_t>(lanes * taps) * sizeof(float));
            }
        }
    }

    void pack(const float* from, float* to) const {
        const int64_t row = inputs * taps, tiles = (outputs + lanes - 1) / lanes, padded = (outputs + block - 1) / block * (block / lanes);
#pragma omp parallel for if (outputs * row > 65536)
        for (int64_t tile = 0; tile < padded; ++tile) {
            const int64_t first = tile * lanes, count = tile < tiles ? std::min<int64_t>(lanes, outputs - first) : 0;
            float* place = to + first / block * block * row + first % block;
            int64_t input = 0, tap = 0;
            for (int64_t start = 0; start < row; start += lanes) {
                const int64_t length = std::min<int64_t>(lanes, row - start);
                const float* corner = from + first * row + start;
                vector lines[lanes];
                if (count == lanes && length == lanes)
                    for (int64_t each = 0; each < lanes; ++each) {
                        std::memcpy(&lines[each], corner + each * row, sizeof(vector));
                        __builtin_prefetch(corner + each * row + ahead);
                    }
                else
                    for (int64_t each = 0; each < lanes; ++each) {
                        lines[each] = vector{};
                        if (each < count) std::memcpy(&lines[each], corner + each * row, static_cast<size_t>(length) * sizeof(float));
                    }
                transpose(lines);
                for (int64_t each = 0; each < length; ++each) {
                    std::memcpy(place + (tap * inputs + input) * block, &lines[each], sizeof(vector));
                    if (++tap == taps) tap = 0, ++input;
                }
            }
        }
    }

    static constexpr int64_t lanes = 16, ahead = 8 * lanes;
    typedef float vector __attribute__((vector_size(lanes * sizeof(float))));

    int64_t outputs = 0, inputs = 0, taps = 0, block = 0;
    bool is_output = false;
};

}  // namespace precast
