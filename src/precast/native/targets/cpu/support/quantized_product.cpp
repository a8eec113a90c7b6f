// Rows by weights of 8 or 4 bits, which are dequantized in registers; integer products if rows have 8 bits, too.
//
// Inputs: left [rows, depth]; codes [columns, depth], two to a byte if they have 4 bits; scales and zero points [columns, groups],
// if there are any. Output: result [rows, columns]. Numbers: bits of a code, a common zero point, whether there are scales, and
// whether there are zero points. Codes of 16 bits are plain bfloat16 weights. Rows of integers are multiplied with 8-bit codes
// without scales and zero points.
#include <omp.h>

#include "integer_rows.h"
#include "quantized_rows.h"

namespace precast {

namespace {

// Copies rows as floats in the order of the codes, padded with zeros to a whole number of blocks.
template <class Codes>
void arrange_rows(const strided& left, int64_t rows, int64_t depth, float* to) {
    const int64_t padded = rounded_up(depth, Codes::block);
#pragma omp parallel for if (rows > 16 && rows * depth > 65536)
    for (int64_t row = 0; row < rows; ++row) {
        float* line = to + row * padded;
        read_line(left, row * left.strides[0], left.strides[1], depth, line);
        std::fill(line + depth, line + padded, 0.0f);
        if (Codes::vectors == 1) continue;
        for (int64_t k = 0; k < padded; k += Codes::block) {
            float block[Codes::block];
            std::copy(line + k, line + k + Codes::block, block);
            Codes::arrange(line + k, block);
        }
    }
}

// The destination: rows of floats directly; others through floats, with 16-bit float operands converted first.
class destination {
public:
    product_problem problem;

    destination(const strided* inputs, const strided& result, const epilogue& epilogue, float* floats)
        : inputs(inputs), result(result), epilogue(epilogue) {
        if (const auto direct = product_into(inputs, result, epilogue)) {
            problem = *direct;
            return;
        }
        is_apart = true;
        single = result;
        single.dtype = {2, 32, 1};
        single.data = floats;
        single.strides[0] = result.sizes[1], single.strides[1] = 1;
        widen_operands();
        const auto whole = product_into(operands.data(), single, epilogue);
        leaves_epilogue = !whole;
        problem = whole ? *whole : *product_into(inputs, single, {nullptr, 0});
    }
    void finish() const {
        if (!is_apart) return;
        const auto* floats = static_cast<const float*>(single.data);
        if (leaves_epilogue) run_epilogue(inputs, single, epilogue);
        for (int64_t row = 0; row < result.sizes[0]; ++row)
            write_line(floats + row * result.sizes[1], result, row * result.strides[0], result.strides[1], result.sizes[1]);
    }

private:
    const strided *inputs, &result;
    const precast::epilogue& epilogue;
    strided single{};
    bool is_apart = false, leaves_epilogue = false;
    std::vector<strided> operands;
    std::vector<std::vector<float>> widened;

    void widen_operands() {
        int32_t count = 2;
        for (int32_t each = 0; each < epilogue.size; ++each) count = std::max(count, epilogue.steps[each].operand + 1);
        operands.assign(inputs, inputs + count);
        for (int32_t each = 0; each < epilogue.size; ++each) {
            if (epilogue.steps[each].operand < 0) continue;
            auto& operand = operands[epilogue.steps[each].operand];
            if (operand.is_single() || operand.dtype.bits != 16) continue;
            // Broadcast dimensions are read once.
            const int64_t rows = operand.strides[0] ? operand.sizes[0] : 1, columns = operand.strides[1] ? operand.sizes[1] : 1;
            widened.emplace_back(static_cast<size_t>(rows * columns));
            for (int64_t row = 0; row < rows; ++row)
                read_line(operand, row * operand.strides[0], operand.strides[1], columns, widened.back().data() + row * columns);
            operand.dtype = {2, 32, 1};
            operand.data = widened.back().data();
            operand.strides[0] = operand.strides[0] ? columns : 0;
            operand.strides[1] = operand.strides[1] ? 1 : 0;
        }
    }
};

struct quantized_call {
    precast::context* context;
    const strided *inputs, &result;
    const precast::epilogue& epilogue;
    quantized_weights weights;

    template <class Codes>
    int32_t run() const {
        const auto& left = inputs[0];
        const int64_t rows = result.sizes[0], columns = result.sizes[1], depth = left.sizes[1];
        const int64_t padded = rounded_up(depth, Codes::block);
        const bool is_in_order = Codes::vectors == 1 && padded == depth && left.is_single() && (left.strides[1] == 1 || depth == 1);
        quantized_rows::problem problem{{}, weights};
        auto& mine = problem.product;
        mine.rows = rows, mine.columns = columns, mine.depth = depth;
        const int64_t own = quantized_rows::workspace_of(problem), threads = omp_get_max_threads();
        const int64_t copied = is_in_order ? 0 : rows * padded, apart = rounded_up(rows * columns, vector_lanes);
        auto* memory = reinterpret_cast<float*>(context->scratch((own * threads + copied + apart) * static_cast<int64_t>(sizeof(float))));
        if (!memory) return fail(PRECAST_OUT_OF_MEMORY, "no memory for a product by quantized weights");
        float *place = memory + own * threads, *floats = place + copied;
        const destination to(inputs, result, epilogue, floats);
        mine = to.problem;
        mine.depth = depth;
        mine.left = is_in_order ? static_cast<const float*>(left.data) : place;
        mine.left_step = is_in_order ? left.strides[0] : padded;
        if (!is_in_order) arrange_rows<Codes>(left, rows, depth, place);
        quantized_rows::multiply<Codes>(problem, memory);
        to.finish();
        return PRECAST_OK;
    }

    int32_t run_integers() const {
        const auto& left = inputs[0];
        const int64_t rows = result.sizes[0], columns = result.sizes[1], depth = left.sizes[1];
        const int64_t padded = rounded_up(depth, integer_rows::block), bytes = rounded_up(rows * padded, 64);
        char* memory = context->scratch(bytes + rows * columns * static_cast<int64_t>(sizeof(float)));
        if (!memory) return fail(PRECAST_OUT_OF_MEMORY, "no memory for a product of whole numbers");
        auto* place = reinterpret_cast<int8_t*>(memory);
        const destination to(inputs, result, epilogue, reinterpret_cast<float*>(memory + bytes));
        integer_rows::problem problem{to.problem, place, reinterpret_cast<const int8_t*>(weights.codes), padded, weights.step};
        problem.product.depth = depth;
#pragma omp parallel for if (rows * depth > 65536)
        for (int64_t row = 0; row < rows; ++row)
            integer_rows::arrange(static_cast<const int8_t*>(left.data) + row * left.strides[0], left.strides[1], depth, place + row * padded);
        integer_rows::multiply(problem);
        to.finish();
        return PRECAST_OK;
    }
};

}  // namespace

int32_t quantized_product(context* context, const strided* inputs, const strided* outputs, const int64_t* numbers, const epilogue& epilogue) {
    const auto &codes = inputs[1], &result = outputs[0];
    const int64_t bits = numbers[0], depth = inputs[0].sizes[1];
    const strided* scales = numbers[2] ? inputs + 2 : nullptr;
    const strided* zeros = numbers[3] ? inputs + 2 + numbers[2] : nullptr;
    if (!result.sizes[0] || !result.sizes[1]) return PRECAST_OK;
    const int64_t groups = scales ? scales->sizes[1] : zeros ? zeros->sizes[1] : 1, stored = codes.sizes[1] * codes.dtype.bits / bits;
    const quantized_call call{context, inputs, result, epilogue,
                              {static_cast<const uint8_t*>(codes.data), codes.strides[0] * codes.dtype.bits / 8, groups == 1 ? depth : stored / groups, groups, scales,
                               zeros, static_cast<float>(numbers[1])}};
    if (inputs[0].dtype.code == 0) return call.run_integers();
    if (bits == 16) return call.run<bfloat_codes>();
    if (bits == 4) return call.run<half_byte_codes>();
    if (codes.dtype.code != 0) return call.run<byte_codes<uint8_t, true>>();
    return zeros || numbers[1] ? call.run<byte_codes<int8_t, true>>() : call.run<byte_codes<int8_t, false>>();
}

}  // namespace precast
