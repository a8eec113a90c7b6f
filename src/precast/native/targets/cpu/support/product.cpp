#include "product.h"

#include "few_rows.h"
#include "packed_product.h"
#include "packed_rows.h"
#include "panel_product.h"

namespace precast {

namespace {

// Operands of an epilogue in the form of a vector epilogue: rows are pixels, columns are channels.
std::vector<strided> as_images(const strided* inputs, const epilogue& epilogue) {
    int32_t count = 0;
    for (int32_t each = 0; each < epilogue.size; ++each) count = std::max(count, epilogue.steps[each].operand + 1);
    std::vector<strided> images(inputs, inputs + count);
    for (auto& image : images) {
        const int64_t sizes[] = {1, image.sizes[1], 1, image.sizes[0]}, strides[] = {0, image.strides[1], 0, image.strides[0]};
        image.rank = 4;
        std::copy(sizes, sizes + 4, image.sizes);
        std::copy(strides, strides + 4, image.strides);
    }
    return images;
}

// The product, for any layout of the right matrix; nothing if the other layouts are not supported.
std::optional<product_problem> problem_of(const strided* inputs, const strided& result, const epilogue& epilogue) {
    const auto &left = inputs[0], &right = inputs[1];
    if (!left.is_single() || !right.is_single() || left.strides[1] != 1) return {};
    auto problem = product_into(inputs, result, epilogue);
    if (!problem) return {};
    problem->left = static_cast<const float*>(left.data);
    problem->right = static_cast<const float*>(right.data);
    problem->depth = left.sizes[1];
    problem->left_step = left.strides[0];
    problem->right_step = right.strides[1];
    return problem;
}

}  // namespace

std::optional<product_problem> product_into(const strided* inputs, const strided& result, const epilogue& epilogue) {
    if (result.rank != 2 || !result.is_single() || (result.strides[1] != 1 && result.sizes[1] != 1)) return {};
    product_problem problem{};
    problem.result = static_cast<float*>(result.data);
    problem.rows = result.sizes[0];
    problem.columns = result.sizes[1];
    problem.result_step = result.strides[0];
    if (epilogue.size && !problem.finish.set(as_images(inputs, epilogue).data(), epilogue)) return {};
    return problem;
}

std::optional<product_problem> product_as_it_lies(const strided* inputs, const strided& result, const epilogue& epilogue) {
    if (inputs[1].strides[0] != 1) return {};
    return problem_of(inputs, result, epilogue);
}

// Few rows, or nearly full vectors of rows; columns that collide in the cache are copied, which pays only for few rows.
bool is_best_as_it_lies(const product_problem& problem) {
    constexpr int64_t long_depth = 64, fewest_full = 16, most_copied = 32, most = 128;
    const int64_t rows = problem.rows, filled = rounded_up(rows, vector_lanes);
    if (!has_vectors || problem.depth < long_depth) return false;
    if (rows <= few_rows::most) return true;
    const bool is_colliding = problem.right_step % panel_product::colliding_step == 0;
    return vector_lanes == 16 && rows <= (is_colliding ? most_copied : most) && (rows <= fewest_full || 10 * rows >= 9 * filled);
}

bool multiply_as_it_lies(context& context, const product_problem& problem) {
    if (problem.rows > few_rows::most) return panel_product::multiply(context, problem);
    few_rows::multiply(problem);
    return true;
}

bool multiply_by_panels(context& context, const product_problem& problem, const strided& right) {
    const bool is_few = problem.rows <= packed_product::most_rows;
    if (!has_vectors || !right.is_constant || !(is_few || packed_rows::is_best(problem))) return false;
    const float* panels = packed_product::panels_of(context, right);
    if (!panels || !is_few) return panels && packed_rows::multiply(context, problem, panels);
    packed_product::multiply(context, problem, panels);
    return true;
}

bool multiply_by_constant(context& context, const strided* inputs, const strided& result, const epilogue& epilogue) {
    if (!has_vectors || !inputs[1].is_constant) return false;
    const auto problem = problem_of(inputs, result, epilogue);
    return problem && multiply_by_panels(context, *problem, inputs[1]);
}

}  // namespace precast
