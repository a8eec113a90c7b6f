// GEMMs in single precision, of few rows, or by a constant.
//
// Matrices with contiguous columns, such as the weights of linear layers, are read in place, since they may change between
// calls. Constants are packed into panels once.
#pragma once

#include <algorithm>
#include <optional>

#include "channel_finish.h"
#include "context.h"

namespace precast {

// result[row][column] = finish(sum over k of left[row * left_step + k] * right[column * right_step + k])
struct product_problem {
    const float *left, *right;
    float* result;
    int64_t rows, columns, depth, left_step, right_step, result_step;
    channel_finish finish;

    bool is_large() const { return rows * columns * depth > 65536; }

    // Some columns of a row, or of several.
    void write(float_vector value, int64_t row, int64_t column, int64_t lanes) const {
        float_vector values[] = {value};
        write(values, row, column, lanes);
    }
    template <int count>
    void write(float_vector (&values)[count], int64_t first_row, int64_t column, int64_t lanes) const {
        const auto finishing = finish.of(column, lanes);
        const bool only_clamps = finish.only_clamps();
        for (auto& value : values) value = only_clamps ? finishing.clamped(value) : finishing(value);
        if (!finish.rest.is_empty()) finish.rest.run(values, {0, 0, first_row, column, lanes});
        for (int row = 0; row < count; ++row) store_lanes(result + (first_row + row) * result_step + column, values[row], lanes);
    }
};

// The destination and epilogue of a product whose result is rows of floats; nothing if vectors cannot be written there.
std::optional<product_problem> product_into(const strided* inputs, const strided& result, const epilogue& epilogue);

// The product and its epilogue in the form of these loops; nothing if the layouts are not supported.
std::optional<product_problem> product_as_it_lies(const strided* inputs, const strided& result, const epilogue& epilogue);

// Whether these loops are likely to be the fastest variant, as measured.
bool is_best_as_it_lies(const product_problem& problem);

// Returns false if there is no memory.
bool multiply_as_it_lies(context& context, const product_problem& problem);

// Rows by a constant matrix. Returns false if it is not constant, another variant is better, or there is no memory.
bool multiply_by_panels(context& context, const product_problem& problem, const strided& right);

// The same for operands of any layout. Returns false if this is a different problem, or there is no memory.
bool multiply_by_constant(context& context, const strided* inputs, const strided& result, const epilogue& epilogue);

}  // namespace precast
