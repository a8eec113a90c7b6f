// 1×1 convolutions as products of pixels by filters: by constant filters in panels, or, for few pixels, by filters in place:
// oneDNN would reorder those in every call, which takes longer than it saves.
#pragma once

#include <optional>

#include "pixel_rows.h"
#include "plain_convolution.h"
#include "product.h"

namespace precast {

class pixel_product {
public:
    explicit pixel_product(const convolution_problem& problem)
        : problem(problem), x(*problem.operands[source]), w(*problem.operands[weights]), y(*problem.operands[result]) {}

    // Returns false if this is a different problem, or another algorithm is better.
    bool run(context& context, const strided* inputs, const epilogue& epilogue) const {
        if (!fits() || !(w.is_constant ? x.sizes[1] >= long_depth : pays())) return false;
        std::vector<strided> rows;
        if (!as_pixel_rows(y, inputs, epilogue, rows)) return false;
        product_problem product{static_cast<const float*>(x.data), static_cast<const float*>(w.data), static_cast<float*>(y.data),
                                pixels(), y.sizes[1], x.sizes[1], x.sizes[1], w.strides[0], y.sizes[1], {}};
        if (!product.finish.set(rows.data(), epilogue)) return false;
        return w.is_constant ? multiply_by_panels(context, product, filters()) : multiply_as_it_lies(context, product);
    }

private:
    static constexpr int64_t long_depth = 64;

    int64_t pixels() const { return pixels_of(y); }

    // One column per filter.
    strided filters() const {
        strided matrix = w;
        matrix.rank = 2;
        for (int dim = 0; dim < 2; ++dim) matrix.sizes[dim] = w.sizes[1 - dim], matrix.strides[dim] = w.strides[1 - dim];
        return matrix;
    }

    bool fits() const {
        if (problem.wanted != result || problem.is_empty() || problem.groups() != 1 || (!w.is_constant && w.strides[1] != 1)) return false;
        for (int dim = 0; dim < problem.spatial(); ++dim)
            if (w.sizes[2 + dim] != 1 || problem.stride(dim) != 1 || problem.padding(dim) != 0) return false;
        for (const auto* each : {&x, &w, &y})
            if (!each->is_single()) return false;
        return is_channels_last(x) && is_channels_last(y);
    }

    // Measured: packing filters costs oneDNN about as much as 16 more pixels. Ours computes whole vectors of pixels.
    bool pays() const {
        constexpr int64_t most = 64, packing = 16;
        if (vector_lanes != 16 || x.sizes[1] < long_depth || pixels() > most) return false;
        return rounded_up(pixels(), vector_lanes) <= pixels() + packing;
    }

    const convolution_problem& problem;
    const strided &x, &w, &y;
};

}  // namespace precast
