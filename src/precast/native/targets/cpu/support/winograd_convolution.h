// Decides when convolutions use Winograd's algorithm, and prepares their operands for it.
#pragma once

#include "context.h"
#include "plain_convolution.h"
#include "vector_epilogue.h"
#include "winograd.h"

namespace precast {

class winograd_convolution {
public:
    winograd_convolution(const convolution_problem& problem)
        : problem(problem), is_turned(problem.wanted == source), filters(*problem.operands[weights]) {}

    // Computes the requested operand. Returns false if another algorithm is better, or if numbers are not finite.
    bool run(context& context, const strided* inputs, const epilogue& epilogue) const {
        if (!has_vectors || !fits()) return false;
        const auto from = images_of(is_turned ? result : source), to = images_of(is_turned ? source : result);
        const winograd::work work(from.channels, to.channels, winograd::patches(to).count());
        if (!pays(work, to)) return false;
        const int64_t above = is_turned ? 2 - problem.padding(0) : problem.padding(0);
        const int64_t before = is_turned ? 2 - problem.padding(1) : problem.padding(1);
        if (problem.wanted == weights) {
            char* scratch = context.scratch(work.gradient_bytes());
            return scratch && winograd::filter_gradients(from, to, bank(), above, before, work, scratch);
        }
        vector_epilogue finish;
        if (!finish.set(inputs, epilogue)) return false;
        const int64_t packed_size = filters.is_constant ? 0 : work.filter_bytes();
        char* scratch = context.scratch(packed_size + omp_get_max_threads() * work.thread_bytes());
        if (!scratch) return false;
        char* place = filters.is_constant ? packed(context, work) : scratch;
        if (!place) return false;
        const winograd::planes transformed(place, work.filter_elements());
        if (!filters.is_constant) winograd::transform_filters(bank(), work, transformed);
        return winograd::convolve_patches({from, to, transformed, above, before, work, scratch + packed_size}, finish);
    }

private:
    bool fits() const {
        if (problem.spatial() != 2 || problem.groups() != 1 || problem.is_empty()) return false;
        for (int dim = 0; dim < 2; ++dim)
            if (filters.sizes[2 + dim] != 3 || problem.stride(dim) != 1 || problem.dilation(dim) != 1 || problem.padding(dim) > 2) return false;
        for (auto which : {source, weights, result}) {
            const auto& operand = *problem.operands[which];
            if (!operand.is_single()) return false;
            if (which != weights && (operand.strides[1] != 1 || operand.sizes[1] % vector_lanes != 0)) return false;
        }
        return true;
    }

    // Products, and the cost of the transforms in terms of them, as measured. Filter gradients are read and written more often.
    bool pays(const winograd::work& work, const image_batch& results) const {
        const int64_t each_pixel = 55, each_filter = problem.wanted == weights ? 400 : filters.is_constant ? 0 : 250;
        const int64_t direct = filter_area * results.batch * results.height * results.width * work.depth * work.width;
        const int64_t products = patch_area * rounded_up(work.count, winograd::rows) * work.filter_elements();
        const int64_t transforms = each_pixel * work.count * (work.depth + work.width) + each_filter * work.filter_elements();
        return (products + transforms) * 10 < direct * 9;
    }

    image_batch images_of(convolution_operand which) const {
        const auto& image = *problem.operands[which];
        return {static_cast<float*>(image.data), image.sizes[0],   image.sizes[2],  image.sizes[3],
                image.sizes[1],                  image.strides[0], image.strides[2], image.strides[3]};
    }

    // The gradient of the source is a convolution with filters rotated by 180°, from results to sources.
    filter_bank bank() const {
        const int outputs = is_turned ? 1 : 0, inputs = 1 - outputs;
        filter_bank found{static_cast<float*>(filters.data), filters.sizes[inputs], filters.sizes[outputs], filters.strides[inputs],
                          filters.strides[outputs], {}};
        for (int64_t row = 0; row < 3; ++row)
            for (int64_t column = 0; column < 3; ++column)
                found.taps[3 * row + column] = is_turned ? (2 - row) * filters.strides[2] + (2 - column) * filters.strides[3]
                                                         : row * filters.strides[2] + column * filters.strides[3];
        return found;
    }

    // Constant filters are transformed on first use.
    char* packed(context& context, const winograd::work& work) const {
        std::vector<int64_t> key{-patch_area, is_turned, static_cast<int64_t>(reinterpret_cast<intptr_t>(filters.data))};
        key.insert(key.end(), filters.sizes, filters.sizes + 2);
        key.insert(key.end(), filters.strides, filters.strides + 4);
        return context.packed.find(key, work.filter_bytes(), [&](char* place) {
            winograd::transform_filters(bank(), work, winograd::planes(place, work.filter_elements()));
            return true;
        });
    }

    const convolution_problem& problem;
    const bool is_turned;
    const strided& filters;
};

}  // namespace precast
