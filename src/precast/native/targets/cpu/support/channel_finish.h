// Epilogues for vectors of channels, whose operands are mostly per channel.
#pragma once

#include <limits>

#include "vector_epilogue.h"

namespace precast {

// Elements times a scale, plus a shift, both per channel, then clamped; then the rest of the epilogue.
class channel_finish {
public:
    // Returns false if an operand's layout does not allow reading vectors.
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

}  // namespace precast
