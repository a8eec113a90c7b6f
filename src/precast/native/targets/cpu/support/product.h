// Products in single precision, of few rows, or by a constant.
//
// Matrices whose columns lie one after the other, as the weights of linear layers do, are read as they lie: nobody knows whether
// they are still those of the last call. Constants are brought into panels once.
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

// Where a product goes, and what is done to it, of a result that is rows of floats; nothing if vectors cannot be written there.
std::optional<product_problem> product_into(const strided* inputs, const strided& result, const epilogue& epilogue);

// The product and its epilogue as these loops want them; nothing if they lie otherwise.
std::optional<product_problem> product_as_it_lies(const strided* inputs, const strided& result, const epilogue& epilogue);

// Whether these loops are likely to be the fastest way, as measured.
bool is_best_as_it_lies(const product_problem& problem);

// False if there is no memory.
bool multiply_as_it_lies(context& context, const product_problem& problem);

// Rows by a constant matrix. False if it is none, another way is better, or there is no memory.
bool multiply_by_panels(context& context, const product_problem& problem, const strided& right);

// The same for operands that may lie otherwise. False if this is another problem, or there is no memory.
bool multiply_by_constant(context& context, const strided* inputs, const strided& result, const epilogue& epilogue);

}  // namespace precast
