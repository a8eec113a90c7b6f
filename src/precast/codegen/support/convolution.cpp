// Convolutions of one to three spatial dimensions, and both of their gradients: oneDNN where it has the type, plain loops
// elsewhere (double, integers). A transposed convolution is the gradient of one with respect to its input.
//
// Numbers: groups, then strides, padding and dilation of each spatial dimension.
#include <array>
#include <map>
#include <vector>

#include "context.h"
#include "onednn.h"
#include "precast_kernels.h"

namespace precast {

namespace {

enum operand { source, weights, result, operand_count };
constexpr int arguments_of[operand_count][operand_count] = {
    // What each operand is called when the result, or the gradient of the source or of the weights, is computed.
    {DNNL_ARG_DIFF_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DIFF_DST},
    {DNNL_ARG_SRC, DNNL_ARG_DIFF_WEIGHTS, DNNL_ARG_DIFF_DST},
    {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST},
};

struct problem {
    operand wanted;
    const strided* operands[operand_count];
    const int64_t* numbers;
    int spatial() const { return operands[source]->rank - 2; }
    int64_t groups() const { return numbers[0]; }
    int64_t stride(int dim) const { return numbers[1 + dim]; }
    int64_t padding(int dim) const { return numbers[1 + spatial() + dim]; }
    int64_t dilation(int dim) const { return numbers[1 + 2 * spatial() + dim]; }
};

// A prepared primitive. An operand that oneDNN wants in a layout of its own has a second memory and a reorder.
struct prepared {
    dnnl_primitive_t primitive = nullptr, reorders[operand_count] = {};
    dnnl_memory_t given[operand_count] = {}, arranged[operand_count] = {};
    prepared() = default;
    prepared(const prepared&) = delete;
    prepared& operator=(const prepared&) = delete;
    ~prepared() {
        if (primitive) dnnl_primitive_destroy(primitive);
        for (auto each : reorders)
            if (each) dnnl_primitive_destroy(each);
        for (auto each : given)
            if (each) dnnl_memory_destroy(each);
        for (auto each : arranged)
            if (each) dnnl_memory_destroy(each);
    }
};

struct prepared_convolutions : routine_cache {
    precast::engine engine;
    std::map<std::vector<int64_t>, prepared> known;
};

std::vector<int64_t> key_of(const problem& problem, dnnl_data_type_t type) {
    std::vector<int64_t> key{problem.wanted, type};
    key.insert(key.end(), problem.numbers, problem.numbers + 1 + 3 * problem.spatial());
    for (const auto* each : problem.operands) {
        key.insert(key.end(), each->sizes, each->sizes + each->rank);
        key.insert(key.end(), each->strides, each->strides + each->rank);
    }
    return key;
}

// Sizes and strides as oneDNN counts them: weights of several groups have one dimension more.
int dims_of(const problem& problem, operand which, dnnl_dims_t sizes, dnnl_dims_t strides) {
    const auto& tensor = *problem.operands[which];
    const int64_t groups = problem.groups();
    const int shift = which == weights && groups > 1;
    for (int dim = 0; dim < tensor.rank; ++dim) {
        sizes[dim + shift] = tensor.sizes[dim];
        strides[dim + shift] = tensor.strides[dim];
    }
    if (shift) {
        sizes[0] = groups;
        sizes[1] = tensor.sizes[0] / groups;
        strides[0] = tensor.strides[0] * sizes[1];
    }
    return tensor.rank + shift;
}

bool describe(const problem& problem, operand which, dnnl_data_type_t type, bool is_free, dnnl_memory_desc_t* description) {
    dnnl_dims_t sizes, strides;
    const int rank = dims_of(problem, which, sizes, strides);
    if (is_free) return dnnl_memory_desc_create_with_tag(description, rank, sizes, type, dnnl_format_tag_any) == dnnl_success;
    for (int dim = 0; dim < rank; ++dim)
        if (strides[dim] == 0) {
            if (sizes[dim] != 1) return false;
            strides[dim] = 1;
        }
    return dnnl_memory_desc_create_with_strides(description, rank, sizes, type, strides) == dnnl_success;
}

struct descriptions {
    dnnl_memory_desc_t all[operand_count] = {};
    ~descriptions() {
        for (auto each : all)
            if (each) dnnl_memory_desc_destroy(each);
    }
};

struct primitive_description {
    dnnl_primitive_desc_t handle = nullptr;
    ~primitive_description() {
        if (handle) dnnl_primitive_desc_destroy(handle);
    }
};

bool choose(const problem& problem, const engine& engine, const descriptions& free, primitive_description& chosen) {
    dnnl_dims_t strides, dilates, before, after;
    const auto &input = *problem.operands[source], &kernel = *problem.operands[weights], &output = *problem.operands[result];
    for (int dim = 0; dim < problem.spatial(); ++dim) {
        strides[dim] = problem.stride(dim);
        dilates[dim] = problem.dilation(dim) - 1;
        before[dim] = problem.padding(dim);
        const int64_t reach = (kernel.sizes[dim + 2] - 1) * problem.dilation(dim) + 1;
        after[dim] = (output.sizes[dim + 2] - 1) * strides[dim] + reach - input.sizes[dim + 2] - before[dim];
    }
    primitive_description forward;
    if (dnnl_convolution_forward_primitive_desc_create(&forward.handle, engine.handle, dnnl_forward_training,
                                                       dnnl_convolution_direct, free.all[source], free.all[weights], nullptr,
                                                       free.all[result], strides, dilates, before, after,
                                                       nullptr) != dnnl_success)
        return false;
    if (problem.wanted == result) return std::swap(chosen.handle, forward.handle), true;
    if (problem.wanted == source)
        return dnnl_convolution_backward_data_primitive_desc_create(
                   &chosen.handle, engine.handle, dnnl_convolution_direct, free.all[source], free.all[weights],
                   free.all[result], strides, dilates, before, after, forward.handle, nullptr) == dnnl_success;
    return dnnl_convolution_backward_weights_primitive_desc_create(
               &chosen.handle, engine.handle, dnnl_convolution_direct, free.all[source], free.all[weights], nullptr,
               free.all[result], strides, dilates, before, after, forward.handle, nullptr) == dnnl_success;
}

const_dnnl_memory_desc_t wanted_layout(const problem& problem, const primitive_description& chosen, operand which) {
    return dnnl_primitive_desc_query_md(chosen.handle, dnnl_query_exec_arg_md, arguments_of[problem.wanted][which]);
}

bool prepare_operand(const problem& problem, const engine& engine, const primitive_description& chosen, operand which,
                     const_dnnl_memory_desc_t plain, prepared& prepared) {
    const auto wanted = wanted_layout(problem, chosen, which);
    if (dnnl_memory_create(&prepared.given[which], plain, engine.handle, DNNL_MEMORY_NONE) != dnnl_success) return false;
    if (dnnl_memory_desc_equal(wanted, plain)) return true;
    if (dnnl_memory_create(&prepared.arranged[which], wanted, engine.handle, DNNL_MEMORY_ALLOCATE) != dnnl_success) return false;
    const bool is_output = which == problem.wanted;
    primitive_description reorder;
    return dnnl_reorder_primitive_desc_create(&reorder.handle, is_output ? wanted : plain, engine.handle,
                                              is_output ? plain : wanted, engine.handle, nullptr) == dnnl_success &&
           dnnl_primitive_create(&prepared.reorders[which], reorder.handle) == dnnl_success;
}

void prepare(const problem& problem, const engine& engine, dnnl_data_type_t type, prepared& prepared) {
    if (!engine.stream) return;
    descriptions plain, free;
    for (auto which : {source, weights, result})
        if (!describe(problem, which, type, false, &plain.all[which]) || !describe(problem, which, type, true, &free.all[which]))
            return;
    primitive_description chosen;
    if (!choose(problem, engine, free, chosen)) return;
    for (auto which : {source, weights, result})
        if (!prepare_operand(problem, engine, chosen, which, plain.all[which], prepared)) return;
    if (dnnl_primitive_create(&prepared.primitive, chosen.handle) != dnnl_success) prepared.primitive = nullptr;
}

bool arrange(const prepared& prepared, const engine& engine, operand which, bool is_output) {
    if (!prepared.reorders[which]) return true;
    const auto from = is_output ? prepared.arranged[which] : prepared.given[which];
    const auto to = is_output ? prepared.given[which] : prepared.arranged[which];
    const dnnl_exec_arg_t bound[] = {{DNNL_ARG_FROM, from}, {DNNL_ARG_TO, to}};
    return dnnl_primitive_execute(prepared.reorders[which], engine.stream, 2, bound) == dnnl_success;
}

bool execute(const problem& problem, const prepared& prepared, const engine& engine) {
    dnnl_exec_arg_t bound[operand_count];
    for (auto which : {source, weights, result}) {
        if (dnnl_memory_set_data_handle(prepared.given[which], problem.operands[which]->data) != dnnl_success) return false;
        if (which != problem.wanted && !arrange(prepared, engine, which, false)) return false;
        const auto memory = prepared.arranged[which] ? prepared.arranged[which] : prepared.given[which];
        bound[which] = {arguments_of[problem.wanted][which], memory};
    }
    return dnnl_primitive_execute(prepared.primitive, engine.stream, operand_count, bound) == dnnl_success &&
           arrange(prepared, engine, problem.wanted, true) && dnnl_stream_wait(engine.stream) == dnnl_success;
}

// The same with plain loops. Missing spatial dimensions count as one position.
struct plain_loops {
    int64_t batch, groups, inputs, outputs;  // channels are those of one group
    std::array<int64_t, 3> in, kernel, out, stride, padding, dilation;
    std::array<std::array<int64_t, 5>, operand_count> strides;

    explicit plain_loops(const problem& problem) {
        const auto &x = *problem.operands[source], &w = *problem.operands[weights], &y = *problem.operands[result];
        groups = problem.groups();
        batch = x.sizes[0], inputs = w.sizes[1], outputs = w.sizes[0] / groups;
        const int missing = 3 - problem.spatial();
        for (int dim = 0; dim < 3; ++dim) {
            const bool is_there = dim >= missing;
            const int mine = dim - missing;
            in[dim] = is_there ? x.sizes[mine + 2] : 1;
            kernel[dim] = is_there ? w.sizes[mine + 2] : 1;
            out[dim] = is_there ? y.sizes[mine + 2] : 1;
            stride[dim] = is_there ? problem.stride(mine) : 1;
            padding[dim] = is_there ? problem.padding(mine) : 0;
            dilation[dim] = is_there ? problem.dilation(mine) : 1;
            for (auto which : {source, weights, result})
                strides[which][2 + dim] = is_there ? problem.operands[which]->strides[mine + 2] : 0;
        }
        for (auto which : {source, weights, result})
            for (int dim = 0; dim < 2; ++dim) strides[which][dim] = problem.operands[which]->strides[dim];
    }

    int64_t place(operand which, int64_t a, int64_t b, const std::array<int64_t, 3>& at) const {
        const auto& s = strides[which];
        return a * s[0] + b * s[1] + at[0] * s[2] + at[1] * s[3] + at[2] * s[4];
    }

    // Where in the input tap `tap` of output position `at` falls; false if that is outside.
    bool input_position(const std::array<int64_t, 3>& at, const std::array<int64_t, 3>& tap, std::array<int64_t, 3>& found) const {
        for (int dim = 0; dim < 3; ++dim) {
            found[dim] = at[dim] * stride[dim] - padding[dim] + tap[dim] * dilation[dim];
            if (found[dim] < 0 || found[dim] >= in[dim]) return false;
        }
        return true;
    }

    // The output position whose tap `tap` falls on input position `at`; false if there is none.
    bool output_position(const std::array<int64_t, 3>& at, const std::array<int64_t, 3>& tap, std::array<int64_t, 3>& found) const {
        for (int dim = 0; dim < 3; ++dim) {
            const int64_t start = at[dim] + padding[dim] - tap[dim] * dilation[dim];
            if (start < 0 || start % stride[dim] != 0) return false;
            found[dim] = start / stride[dim];
            if (found[dim] >= out[dim]) return false;
        }
        return true;
    }
};

template <class Body>
void each_position(const std::array<int64_t, 3>& sizes, Body body) {
    std::array<int64_t, 3> at;
    for (at[0] = 0; at[0] < sizes[0]; ++at[0])
        for (at[1] = 0; at[1] < sizes[1]; ++at[1])
            for (at[2] = 0; at[2] < sizes[2]; ++at[2]) body(at);
}

template <class T, class Sum>
void convolve(const problem& problem) {
    const plain_loops loops(problem);
    const auto pointer = [&](operand which) { return static_cast<T*>(problem.operands[which]->data); };
    T *x = pointer(source), *w = pointer(weights), *y = pointer(result);
    const int64_t groups = loops.groups, inputs = loops.inputs, outputs = loops.outputs;
    if (problem.wanted == result) {
#pragma omp parallel for collapse(2)
        for (int64_t n = 0; n < loops.batch; ++n)
            for (int64_t o = 0; o < groups * outputs; ++o) each_position(loops.out, [&](const auto& at) {
                Sum sum(0);
                std::array<int64_t, 3> from;
                for (int64_t i = 0; i < inputs; ++i) each_position(loops.kernel, [&](const auto& tap) {
                    if (!loops.input_position(at, tap, from)) return;
                    sum += cast<Sum>(x[loops.place(source, n, o / outputs * inputs + i, from)]) *
                           cast<Sum>(w[loops.place(weights, o, i, tap)]);
                });
                y[loops.place(result, n, o, at)] = cast<T>(sum);
            });
    } else if (problem.wanted == source) {
#pragma omp parallel for collapse(2)
        for (int64_t n = 0; n < loops.batch; ++n)
            for (int64_t i = 0; i < groups * inputs; ++i) each_position(loops.in, [&](const auto& at) {
                Sum sum(0);
                std::array<int64_t, 3> to;
                for (int64_t o = i / inputs * outputs; o < (i / inputs + 1) * outputs; ++o)
                    each_position(loops.kernel, [&](const auto& tap) {
                        if (!loops.output_position(at, tap, to)) return;
                        sum += cast<Sum>(y[loops.place(result, n, o, to)]) * cast<Sum>(w[loops.place(weights, o, i % inputs, tap)]);
                    });
                x[loops.place(source, n, i, at)] = cast<T>(sum);
            });
    } else {
#pragma omp parallel for collapse(2)
        for (int64_t o = 0; o < groups * outputs; ++o)
            for (int64_t i = 0; i < inputs; ++i) each_position(loops.kernel, [&](const auto& tap) {
                Sum sum(0);
                std::array<int64_t, 3> from;
                for (int64_t n = 0; n < loops.batch; ++n) each_position(loops.out, [&](const auto& at) {
                    if (!loops.input_position(at, tap, from)) return;
                    sum += cast<Sum>(x[loops.place(source, n, o / outputs * inputs + i, from)]) *
                           cast<Sum>(y[loops.place(result, n, o, at)]);
                });
                w[loops.place(weights, o, i, tap)] = cast<T>(sum);
            });
    }
}

int32_t convolve_any(const problem& problem) {
    const auto dtype = problem.operands[source]->dtype;
    switch (dtype.code * 256 + dtype.bits) {
        case 2 * 256 + 64: return convolve<double, double>(problem), PRECAST_OK;
        case 2 * 256 + 32: return convolve<float, float>(problem), PRECAST_OK;
        case 2 * 256 + 16: return convolve<float16, float>(problem), PRECAST_OK;
        case 4 * 256 + 16: return convolve<bfloat16, float>(problem), PRECAST_OK;
        case 64: return convolve<int64_t, int64_t>(problem), PRECAST_OK;
        case 32: return convolve<int32_t, int32_t>(problem), PRECAST_OK;
        case 16: return convolve<int16_t, int16_t>(problem), PRECAST_OK;
        case 8: return convolve<int8_t, int8_t>(problem), PRECAST_OK;
        case 256 + 8: return convolve<uint8_t, uint8_t>(problem), PRECAST_OK;
    }
    return fail(PRECAST_FAILED, "no convolution for dtype code %d with %d bits", dtype.code, dtype.bits);
}

bool is_empty(const problem& problem) {
    for (const auto* each : problem.operands)
        for (int dim = 0; dim < each->rank; ++dim)
            if (each->sizes[dim] == 0) return true;
    return false;
}

int32_t run(context* context, const problem& problem) {
    const auto type = type_of(problem.operands[source]->dtype);
    if (type == dnnl_data_type_undef || is_empty(problem)) return convolve_any(problem);
    if (!context->convolutions) context->convolutions = std::make_unique<prepared_convolutions>();
    auto& cache = static_cast<prepared_convolutions&>(*context->convolutions);
    auto [found, is_new] = cache.known.try_emplace(key_of(problem, type));
    if (is_new) prepare(problem, cache.engine, type, found->second);
    if (!found->second.primitive) return convolve_any(problem);
    if (!execute(problem, found->second, cache.engine)) return fail(PRECAST_FAILED, "oneDNN failed in a convolution");
    return PRECAST_OK;
}

}  // namespace

// Inputs: source, weights. Output: result.
int32_t convolution(context* context, const strided* inputs, const strided* outputs, const int64_t* numbers) {
    return run(context, {result, {&inputs[0], &inputs[1], &outputs[0]}, numbers});
}

// Inputs: gradient of the result, weights. Output: gradient of the source.
int32_t convolution_backward_data(context* context, const strided* inputs, const strided* outputs, const int64_t* numbers) {
    return run(context, {source, {&outputs[0], &inputs[1], &inputs[0]}, numbers});
}

// Inputs: source, gradient of the result. Output: gradient of the weights.
int32_t convolution_backward_weights(context* context, const strided* inputs, const strided* outputs, const int64_t* numbers) {
    return run(context, {weights, {&inputs[0], &outputs[0], &inputs[1]}, numbers});
}

}  // namespace precast
