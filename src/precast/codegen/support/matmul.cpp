// Matrix products: oneDNN where it has the type and the layout, plain loops elsewhere (double, integers).
#include <array>
#include <cstring>
#include <map>
#include <vector>

#include "context.h"
#include "onednn.h"
#include "precast_kernels.h"

namespace precast {

namespace {

enum operand { left_operand, right_operand, result_operand, operand_count };
using key = std::array<int64_t, 2 + 2 * max_matrix_rank * operand_count>;

// One product of given sizes, strides and type; `primitive` stays null where oneDNN has none.
struct product {
    dnnl_primitive_t primitive = nullptr;
    dnnl_memory_t memories[operand_count] = {};
    product() = default;
    product(const product&) = delete;
    product& operator=(const product&) = delete;
    ~product() {
        if (primitive) dnnl_primitive_destroy(primitive);
        for (auto memory : memories)
            if (memory) dnnl_memory_destroy(memory);
    }
};

struct products : routine_cache {
    precast::engine engine;
    std::map<key, product> prepared;
};

bool describe(const matrix& matrix, int rank, dnnl_data_type_t type, dnnl_memory_desc_t* description) {
    dnnl_dims_t sizes, strides;
    for (int dim = 0; dim < rank; ++dim) {
        sizes[dim] = matrix.sizes[dim];
        strides[dim] = matrix.strides[dim];
        // A batch that is one matrix repeated: oneDNN broadcasts size 1.
        if (dim < rank - 2 && strides[dim] == 0) sizes[dim] = 1, strides[dim] = 1;
        if (strides[dim] == 0 && sizes[dim] != 1) return false;
        if (sizes[dim] == 1) strides[dim] = strides[dim] ? strides[dim] : 1;
    }
    return dnnl_memory_desc_create_with_strides(description, rank, sizes, type, strides) == dnnl_success;
}

void prepare(product& product, const engine& engine, int rank, dnnl_data_type_t type, const matrix* const* operands) {
    dnnl_memory_desc_t descriptions[operand_count] = {};
    dnnl_primitive_desc_t description = nullptr;
    bool is_good = engine.stream != nullptr;
    for (int each = 0; is_good && each < operand_count; ++each) {
        is_good = describe(*operands[each], rank, type, &descriptions[each]) &&
                  dnnl_memory_create(&product.memories[each], descriptions[each], engine.handle, nullptr) == dnnl_success;
    }
    is_good = is_good && dnnl_matmul_primitive_desc_create(&description, engine.handle, descriptions[left_operand],
                                                           descriptions[right_operand], nullptr,
                                                           descriptions[result_operand], nullptr) == dnnl_success;
    if (is_good && dnnl_primitive_create(&product.primitive, description) != dnnl_success) product.primitive = nullptr;
    if (description) dnnl_primitive_desc_destroy(description);
    for (auto each : descriptions)
        if (each) dnnl_memory_desc_destroy(each);
}

bool execute(const product& product, const engine& engine, const matrix* const* operands) {
    constexpr int arguments[operand_count] = {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST};
    dnnl_exec_arg_t bound[operand_count];
    for (int each = 0; each < operand_count; ++each) {
        if (dnnl_memory_set_data_handle(product.memories[each], operands[each]->data) != dnnl_success) return false;
        bound[each] = {arguments[each], product.memories[each]};
    }
    return dnnl_primitive_execute(product.primitive, engine.stream, operand_count, bound) == dnnl_success &&
           dnnl_stream_wait(engine.stream) == dnnl_success;
}

// Where matrix number `number` of a batch of any rank starts, by the sizes of the result's batch.
int64_t batch_offset(const matrix& operand, const matrix& result, int rank, int64_t number) {
    int64_t offset = 0;
    for (int dim = rank - 3; dim >= 0; --dim) {
        offset += number % result.sizes[dim] * operand.strides[dim];
        number /= result.sizes[dim];
    }
    return offset;
}

// Row by row of the result, adding up in `Sum`.
template <class T, class Sum>
void multiply(int rank, const matrix& left, const matrix& right, const matrix& result) {
    const int row = rank - 2, column = rank - 1;
    const int64_t rows = result.sizes[row], columns = result.sizes[column], depth = left.sizes[column];
    int64_t batch = 1;
    for (int dim = 0; dim < row; ++dim) batch *= result.sizes[dim];
#pragma omp parallel for collapse(2) if (batch * rows * columns * depth > 65536)
    for (int64_t b = 0; b < batch; ++b) {
        for (int64_t i = 0; i < rows; ++i) {
            std::vector<Sum> sums(static_cast<size_t>(columns), Sum(0));
            const T* a = static_cast<const T*>(left.data) + batch_offset(left, result, rank, b) + i * left.strides[row];
            const T* w = static_cast<const T*>(right.data) + batch_offset(right, result, rank, b);
            T* c = static_cast<T*>(result.data) + batch_offset(result, result, rank, b) + i * result.strides[row];
            for (int64_t k = 0; k < depth; ++k) {
                const Sum factor = cast<Sum>(a[k * left.strides[column]]);
                const T* line = w + k * right.strides[row];
                for (int64_t j = 0; j < columns; ++j)
                    sums[static_cast<size_t>(j)] += factor * cast<Sum>(line[j * right.strides[column]]);
            }
            for (int64_t j = 0; j < columns; ++j) c[j * result.strides[column]] = cast<T>(sums[static_cast<size_t>(j)]);
        }
    }
}

int32_t multiply_any(precast_dtype dtype, int rank, const matrix& left, const matrix& right, const matrix& result) {
    switch (dtype.code * 256 + dtype.bits) {
        case 2 * 256 + 64: return multiply<double, double>(rank, left, right, result), PRECAST_OK;
        case 2 * 256 + 32: return multiply<float, float>(rank, left, right, result), PRECAST_OK;
        case 2 * 256 + 16: return multiply<float16, float>(rank, left, right, result), PRECAST_OK;
        case 4 * 256 + 16: return multiply<bfloat16, float>(rank, left, right, result), PRECAST_OK;
        case 64: return multiply<int64_t, int64_t>(rank, left, right, result), PRECAST_OK;
        case 32: return multiply<int32_t, int32_t>(rank, left, right, result), PRECAST_OK;
        case 16: return multiply<int16_t, int16_t>(rank, left, right, result), PRECAST_OK;
        case 8: return multiply<int8_t, int8_t>(rank, left, right, result), PRECAST_OK;
        case 256 + 8: return multiply<uint8_t, uint8_t>(rank, left, right, result), PRECAST_OK;
    }
    return fail(PRECAST_FAILED, "no matrix product for dtype code %d with %d bits", dtype.code, dtype.bits);
}

}  // namespace

int32_t matmul(context* context, precast_dtype dtype, int rank, const matrix& left, const matrix& right,
               const matrix& result) {
    const auto type = type_of(dtype);
    bool is_empty = left.sizes[rank - 1] == 0;
    for (int dim = 0; dim < rank; ++dim) is_empty |= result.sizes[dim] == 0;
    if (type == dnnl_data_type_undef || is_empty) return multiply_any(dtype, rank, left, right, result);
    if (!context->matmuls) context->matmuls = std::make_unique<products>();
    auto& cache = static_cast<products&>(*context->matmuls);
    const matrix* operands[operand_count] = {&left, &right, &result};
    key key{type, rank};
    for (int each = 0; each < operand_count; ++each) {
        std::memcpy(&key[2 + each * 2 * max_matrix_rank], operands[each]->sizes, rank * sizeof(int64_t));
        std::memcpy(&key[2 + (each * 2 + 1) * max_matrix_rank], operands[each]->strides, rank * sizeof(int64_t));
    }
    auto [found, is_new] = cache.prepared.try_emplace(key);
    if (is_new) prepare(found->second, cache.engine, rank, type, operands);
    if (!found->second.primitive) return multiply_any(dtype, rank, left, right, result);
    if (!execute(found->second, cache.engine, operands)) return fail(PRECAST_FAILED, "oneDNN failed in a matrix product");
    return PRECAST_OK;
}

}  // namespace precast
