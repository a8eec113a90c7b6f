// Epilogues for vectors of channels: several pixels at a time, so that dispatching costs little.
#pragma once

#include <algorithm>
#include <vector>

#include "epilogue.h"
#include "vectors.h"

namespace precast {

// The position of a vector of channels in a batch of images; the last one may hold fewer channels than lanes.
struct vector_place {
    int64_t n, row, column, channel;
    int64_t lanes = vector_lanes;
};

class vector_epilogue {
public:
    // The steps from `first` on. Returns false if an operand's layout does not allow reading vectors.
    bool set(const strided* inputs, const epilogue& epilogue, int32_t first = 0) {
        for (int32_t each = first; each < epilogue.size; ++each) {
            step added{epilogue.steps[each].kind, nullptr, {}};
            if (epilogue.steps[each].operand >= 0) {
                const auto& operand = inputs[epilogue.steps[each].operand];
                if (operand.rank != 4 || !operand.is_single()) return false;
                if (operand.strides[1] > 1 && operand.sizes[1] > 1) return false;
                added.data = static_cast<const float*>(operand.data);
                std::copy(operand.strides, operand.strides + 4, added.strides);
            }
            steps.push_back(added);
        }
        return true;
    }

    bool is_empty() const { return steps.empty(); }

    // Adjacent pixels of a row, from `place` on.
    template <int count>
    void run(float_vector (&values)[count], const vector_place& place, int64_t valid = count) const {
        for (const auto& step : steps) {
            float_vector operands[count] = {};
            for (int64_t each = 0; step.data && each < valid; ++each) operands[each] = step.operand(place, each);
            for (int64_t each = 0; each < valid; ++each) values[each] = finished_vector(step.kind, values[each], operands[each]);
        }
    }

    float_vector operator()(float_vector value, int64_t n, int64_t row, int64_t column, int64_t channel) const {
        float_vector values[] = {value};
        run(values, {n, row, column, channel});
        return values[0];
    }

private:
    struct step {
        finish_kind kind;
        const float* data;
        int64_t strides[4];

        float_vector operand(const vector_place& place, int64_t pixel) const {
            const float* at = data + place.n * strides[0] + place.row * strides[2] + (place.column + pixel) * strides[3];
            return strides[1] ? load_lanes(at + place.channel, place.lanes) : same_in_all(*at);
        }
    };

    template <finish_kind kind>
    static float_vector by_lane(float_vector value) {
        float lanes[vector_lanes];
        store_vector(lanes, value);
        for (auto& lane : lanes) lane = finished(kind, lane, 0);
        return load_vector(lanes);
    }

#if defined(__AVX512F__)
    // As in precast_math.h; the processor scales by powers of two in one step.
    static float_vector exponential(float_vector value) {
        using F = format<float>;
        const float_vector x = at_most(at_least(value, same_in_all(F::exp_lowest)), same_in_all(F::exp_highest));
        const auto n = reinterpret_cast<float_vector>(_mm512_roundscale_ps(reinterpret_cast<__m512>(x * F::log2_e), 0));
        const float_vector r = multiply_add(-n, same_in_all(F::ln2_low), multiply_add(-n, same_in_all(F::ln2_high), x));
        float_vector slope = same_in_all(1.39411632e-3f);
        for (const float next : {8.36918688e-3f, 4.16663522e-2f, 1.66665049e-1f, 0.5f, 1.f, 1.f}) slope = multiply_add(slope, r, same_in_all(next));
        return reinterpret_cast<float_vector>(_mm512_scalef_ps(reinterpret_cast<__m512>(slope), reinterpret_cast<__m512>(n)));
    }
    static float_vector silu(float_vector value) { return value / (1.0f + exponential(-value)); }
    static float_vector sigmoid(float_vector value) {
        const float_vector e = exponential(value < 0.0f ? value : -value);
        return (value < 0.0f ? e : same_in_all(1)) / (1.0f + e);
    }
#else
    static float_vector silu(float_vector value) { return by_lane<finish_kind::silu>(value); }
    static float_vector sigmoid(float_vector value) { return by_lane<finish_kind::sigmoid>(value); }
#endif

    static float_vector finished_vector(finish_kind kind, float_vector value, float_vector operand) {
        const float_vector zero = {};
        switch (kind) {
            case finish_kind::add: return value + operand;
            case finish_kind::mul: return value * operand;
            case finish_kind::relu: return at_least(value, zero);
            case finish_kind::relu6: return at_most(at_least(value, zero), same_in_all(6));
            case finish_kind::gelu: return by_lane<finish_kind::gelu>(value);
            case finish_kind::gelu_doubled: return by_lane<finish_kind::gelu_doubled>(value);
            case finish_kind::gelu_tanh: return by_lane<finish_kind::gelu_tanh>(value);
            case finish_kind::silu: return silu(value);
            case finish_kind::tanh: return by_lane<finish_kind::tanh>(value);
            case finish_kind::sigmoid: return sigmoid(value);
            case finish_kind::hardswish: return value * at_most(at_least(value + 3.0f, zero), same_in_all(6)) / 6.0f;
        }
        return value;
    }

    std::vector<step> steps;
};

}  // namespace precast
