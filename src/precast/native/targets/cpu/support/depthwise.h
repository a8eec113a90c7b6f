// The gradient of depthwise filters. For filters wider than 3, oneDNN treats groups of 16 channels as dense, which takes 16
// times as many products.
#pragma once

#include <algorithm>

#include "plain_convolution.h"
#include "vectors.h"

namespace precast {

class depthwise_gradient {
public:
    explicit depthwise_gradient(const convolution_problem& problem)
        : problem(problem), x(*problem.operands[source]), w(*problem.operands[weights]), y(*problem.operands[result]) {}

    // Returns false if this is a different problem.
    bool run() const {
        if (!has_vectors || !fits()) return false;
        switch (w.sizes[3]) {
            case 5: return run_wide<5>(), true;
            case 7: return run_wide<7>(), true;
            case 9: return run_wide<9>(), true;
        }
        return false;
    }

private:
    bool fits() const {
        if (problem.wanted != weights || problem.spatial() != 2 || problem.is_empty()) return false;
        if (problem.groups() != x.sizes[1] || w.sizes[0] != x.sizes[1] || x.sizes[1] % vector_lanes != 0) return false;
        for (const auto* each : {&x, &w, &y})
            if (!each->is_single()) return false;
        return x.strides[1] == 1 && y.strides[1] == 1 && w.sizes[2] <= most_rows;
    }

    template <int64_t width>
    void run_wide() const {
#pragma omp parallel for
        for (int64_t channel = 0; channel < x.sizes[1]; channel += vector_lanes) {
            float_vector totals[most_rows * width] = {};
            for (int64_t n = 0; n < y.sizes[0]; ++n)
                for (int64_t row = 0; row < y.sizes[2]; ++row)
                    for (int64_t tap = 0; tap < w.sizes[2]; ++tap) {
                        const int64_t from = row * problem.stride(0) + tap * problem.dilation(0) - problem.padding(0);
                        if (from < 0 || from >= x.sizes[2]) continue;
                        add_row<width>(static_cast<const float*>(x.data) + n * x.strides[0] + from * x.strides[2] + channel,
                                       static_cast<const float*>(y.data) + n * y.strides[0] + row * y.strides[2] + channel,
                                       totals + tap * width);
                    }
            for (int64_t tap = 0; tap < w.sizes[2]; ++tap)
                for (int64_t column = 0; column < width; ++column)
                    for (int64_t lane = 0; lane < vector_lanes; ++lane)
                        static_cast<float*>(w.data)[(channel + lane) * w.strides[0] + tap * w.strides[2] + column * w.strides[3]] =
                            totals[tap * width + column][lane];
        }
    }

    // Each row is summed separately, then added to the others: so rounding errors stay small.
    template <int64_t width>
    void add_row(const float* pixels, const float* gradients, float_vector* totals) const {
        const int64_t stride = problem.stride(1), dilation = problem.dilation(1), padding = problem.padding(1), columns = y.sizes[3];
        // From `first` to `last`, all taps are inside the image.
        const int64_t room = x.sizes[3] - 1 - (width - 1) * dilation + padding;
        const int64_t last = room < 0 ? 0 : std::min(columns, room / stride + 1), first = std::min((padding + stride - 1) / stride, last);
        float_vector sums[width] = {};
        const auto add = [&](int64_t column, auto is_inside) {
            const float_vector gradient = load_vector(gradients + column * y.strides[3]);
            const int64_t start = column * stride - padding;
#pragma GCC unroll 9
            for (int64_t tap = 0; tap < width; ++tap)
                if (is_inside(start + tap * dilation))
                    sums[tap] = multiply_add(gradient, load_vector(pixels + (start + tap * dilation) * x.strides[3]), sums[tap]);
        };
        const auto may_be = [&](int64_t place) { return place >= 0 && place < x.sizes[3]; };
        for (int64_t column = 0; column < first; ++column) add(column, may_be);
        for (int64_t column = first; column < last; ++column) add(column, [](int64_t) { return true; });
        for (int64_t column = last; column < columns; ++column) add(column, may_be);
        for (int64_t tap = 0; tap < width; ++tap) totals[tap] = totals[tap] + sums[tap];
    }

    static constexpr int64_t most_rows = 16;
    const convolution_problem& problem;
    const strided &x, &w, &y;
};

}  // namespace precast
