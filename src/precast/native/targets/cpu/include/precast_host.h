// What generated host code uses: tables that describe entries, and the frame of one call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "precast.h"

namespace precast {

// An input or output: the caller's, or, if `state` is not negative, that tensor of the model's state. `is_written` is true for an
// input into which the program writes its new value.
struct tensor_spec {
    const char* name;
    precast_dtype dtype;
    int32_t rank;
    int32_t state;
    bool is_written;
};

// A named tensor of the model. `storage` names the stored weight that holds it, if that is known, from `stored_offset` elements
// on. Offsets and strides count elements.
struct state_spec {
    const char* name;
    precast_dtype dtype;
    int32_t rank;
    const int64_t* shape;
    const int64_t* strides;
    bool is_updated;
    const char* storage;
    const int64_t* stored_strides;
    int64_t stored_offset;
};

// A dynamic size, from `lower` to `upper`: dimension `dimension` of input `input` is `factor` times it plus `offset`.
// Dimension -1: the value of that input, a zero-dim int64 tensor.
struct size_source {
    int32_t input, dimension;
    int64_t factor, offset, lower, upper;
};

// Data in the library besides code; absent data has size 0.
struct embedded_data {
    const unsigned char* weights;
    size_t weights_size;
    const char* manifest;
};

class context;

// One call: pointers to inputs, weights among them, and outputs in the program's order; scratch memory; sizes, and where
// data-dependent ones are stored once they are known.
struct frame {
    void* const* inputs;
    void* const* outputs;
    char* arena;
    const int64_t* sizes;
    precast::context* context;
    int64_t* found;
};

struct entry {
    const char* name;
    const char* json;
    const tensor_spec* inputs;
    size_t input_count;
    const tensor_spec* outputs;
    size_t output_count;
    const size_source* sizes;
    size_t size_count;
    // Writes the sizes, then the strides, of every input and then of every output, one after the other. Returns false if one of
    // them does not fit 64 bits.
    bool (*layouts)(const int64_t* sizes, int64_t* layouts);
    // In bytes; negative if it, or any other number that the program computes from sizes, does not fit 64 bits.
    int64_t (*arena_size)(const int64_t* sizes);
    int32_t (*run)(const frame& frame);
    size_t fallback_count;
    // A condition on sizes that does not hold, as text; null if all hold.
    const char* (*broken_condition)(const int64_t* sizes);
    // The number of data-dependent sizes. `layouts` sizes outputs for their upper bounds; this one, called with their values after
    // all other sizes, writes the layouts of outputs only.
    size_t found_count;
    bool (*found_layouts)(const int64_t* sizes, int64_t* layouts);
};

extern const entry entries[];
extern const size_t entry_count;
extern const state_spec* const states;
extern const size_t state_count;
extern const embedded_data embedded;

constexpr int max_rank = PRECAST_MAX_RANK;

// An operand of a routine. A constant one has the same elements in every call: it is a weight of the model.
struct strided {
    precast_dtype dtype;
    int32_t rank;
    bool is_constant;
    void* data;
    int64_t sizes[max_rank], strides[max_rank];

    bool is_single() const { return dtype.code == 2 && dtype.bits == 32; }  // a 32-bit float
};

// Routines take inputs, outputs and numbers, each as documented where it is defined.
using routine = int32_t(context* context, const strided* inputs, const strided* outputs, const int64_t* numbers);
routine attention, attention_backward, convolution_backward_data, convolution_backward_weights, fft, grouped_product, nonzero,
    scan, search, sort, unique;
routine cholesky, eigh, exchanged_rows, geqrf, householder_product, least_squares, lu_factor, lu_solve, matrix_exp, ormqr, svd,
    triangular_solve;

// An operation applied to each element of a result before it is written; `operand` is an input's number, or -1 for none.
enum class finish_kind : int32_t { add, mul, relu, relu6, gelu, gelu_doubled, gelu_tanh, silu, tanh, sigmoid, hardswish };
struct finish {
    finish_kind kind;
    int32_t operand;
};
struct epilogue {
    const finish* steps;
    int32_t size;
};
using finishing_routine = int32_t(context* context, const strided* inputs, const strided* outputs, const int64_t* numbers,
                                  const epilogue& epilogue);
finishing_routine matmul, convolution, quantized_product;
// The prologue, applied to each element of the first input as it is read, has the form of an epilogue.
using wrapping_routine = int32_t(context* context, const strided* inputs, const strided* outputs, const int64_t* numbers,
                                 const epilogue& prologue, const epilogue& epilogue);
wrapping_routine depthwise_convolution;

int32_t call_fallback(const frame& frame, int32_t entry, int32_t step, const precast_tensor* inputs, size_t input_count,
                      const precast_tensor* outputs, size_t output_count);

// Records why a call fails, and returns `status`.
precast_status fail(precast_status status, const char* format, ...) __attribute__((format(printf, 2, 3)));

}  // namespace precast
