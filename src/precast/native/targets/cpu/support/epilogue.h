// Epilogues with plain loops, for results of algorithms without fused ones.
#pragma once

#include "elements.h"

namespace precast {

template <class Visit>
void each_row(const strided& result, Visit visit) {
    int64_t rows = 1;
    for (int dim = 0; dim + 1 < result.rank; ++dim) rows *= result.sizes[dim];
#pragma omp parallel for
    for (int64_t row = 0; row < rows; ++row) {
        int64_t at[max_rank] = {}, left = row;
        for (int dim = result.rank - 2; dim >= 0; --dim) {
            at[dim] = left % result.sizes[dim];
            left /= result.sizes[dim];
        }
        visit(at);
    }
}

inline int64_t place_of(const strided& operand, const int64_t* at, int rank) {
    int64_t place = 0;
    for (int dim = 0; dim < rank; ++dim) place += at[dim] * operand.strides[dim];
    return place;
}

inline float finished(finish_kind kind, float value, float operand) {
    switch (kind) {
        case finish_kind::add: return value + operand;
        case finish_kind::mul: return value * operand;
        case finish_kind::relu: return value < 0 ? 0 : value;
        case finish_kind::relu6: return clamped(value, 0.0f, 6.0f);
        case finish_kind::gelu: return value * 0.5f * (1 + erf(value * 0.70710678f));
        // Like oneDNN: the intermediate is doubled, and infinity becomes NaN.
        case finish_kind::gelu_doubled: return value * (1 + erf(value * 0.70710678f)) * 0.5f + 0.0f * value;
        case finish_kind::gelu_tanh: return value * 0.5f * (1 + tanh(0.79788456f * (value + 0.044715f * value * value * value)));
        case finish_kind::silu: return value / (1 + exp(-value));
        case finish_kind::tanh: return tanh(value);
        case finish_kind::sigmoid: return sigmoid(value);
        case finish_kind::hardswish: return value * minimum(maximum(value + 3, 0.0f), 6.0f) / 6;
    }
    return value;
}

// Only results of floating-point types up to 32 bits have epilogues.
inline void run_epilogue(const strided* inputs, const strided& result, const epilogue& epilogue) {
    const int last = result.rank - 1;
    if (epilogue.size == 0) return;
    each_row(result, [&](const int64_t* at) {
        const int64_t start = place_of(result, at, last);
        for (int64_t column = 0; column < result.sizes[last]; ++column) {
            const int64_t place = start + column * result.strides[last];
            float value = element_of(result, place);
            for (int32_t each = 0; each < epilogue.size; ++each) {
                const auto& step = epilogue.steps[each];
                float operand = 0;
                if (step.operand >= 0) {
                    const auto& from = inputs[step.operand];
                    operand = element_of(from, place_of(from, at, last) + column * from.strides[last]);
                }
                value = finished(step.kind, value, operand);
            }
            set_element(result, place, value);
        }
    });
}

}  // namespace precast
