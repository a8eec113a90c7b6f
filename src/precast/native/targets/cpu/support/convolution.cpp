// Convolutions of one to three spatial dimensions, and both of their gradients: by Winograd's algorithm where that is fastest, by
// oneDNN where it has the type, by plain loops otherwise (double, integers). A transposed convolution is the gradient of one
// with respect to its input.
//
// Numbers: groups, then strides, padding and dilation of each spatial dimension.
#include "epilogue.h"
#include "own_convolutions.h"
#include "pixel_product.h"
#include "plain_convolution.h"
#include "primitive.h"

namespace precast {

namespace {

constexpr int arguments_of[operand_count][operand_count] = {
    // oneDNN's names of the operands for the result, the gradient of the source, and that of the weights.
    {DNNL_ARG_DIFF_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DIFF_DST},
    {DNNL_ARG_SRC, DNNL_ARG_DIFF_WEIGHTS, DNNL_ARG_DIFF_DST},
    {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST},
};

// An operand with oneDNN's dimensions: weights of several groups have one more.
strided counted(const convolution_problem& problem, convolution_operand which) {
    const auto& tensor = *problem.operands[which];
    const int64_t groups = problem.groups();
    if (which != weights || groups == 1) return tensor;
    strided counted = tensor;
    counted.rank = tensor.rank + 1;
    for (int dim = 0; dim < tensor.rank; ++dim) {
        counted.sizes[dim + 1] = tensor.sizes[dim];
        counted.strides[dim + 1] = tensor.strides[dim];
    }
    counted.sizes[0] = groups;
    counted.sizes[1] = tensor.sizes[0] / groups;
    counted.strides[0] = tensor.strides[0] * counted.sizes[1];
    return counted;
}

struct geometry {
    dnnl_dims_t strides, dilates, before, after;
    explicit geometry(const convolution_problem& problem) {
        const auto &input = *problem.operands[source], &kernel = *problem.operands[weights], &output = *problem.operands[result];
        for (int dim = 0; dim < problem.spatial(); ++dim) {
            strides[dim] = problem.stride(dim);
            dilates[dim] = problem.dilation(dim) - 1;
            before[dim] = problem.padding(dim);
            const int64_t reach = (kernel.sizes[dim + 2] - 1) * problem.dilation(dim) + 1;
            after[dim] = (output.sizes[dim + 2] - 1) * strides[dim] + reach - input.sizes[dim + 2] - before[dim];
        }
    }
};

using layouts = owned_layout[operand_count];

bool plan_convolution(const convolution_problem& problem, const engine& engine, const layouts& wanted, const owned_layout& bias,
                      const owned_attributes& attributes, owned_plan& plan) {
    const geometry g(problem);
    const auto x = wanted[source].get(), w = wanted[weights].get(), y = wanted[result].get();
    const bool is_forward = problem.wanted == result;
    owned_plan forward;
    if (dnnl_convolution_forward_primitive_desc_create(
            is_forward ? plan.fill() : forward.fill(), engine.handle.get(), is_forward ? dnnl_forward_inference : dnnl_forward_training,
            dnnl_convolution_direct, x, w, bias.get(), y, g.strides, g.dilates, g.before, g.after, attributes.get()) != dnnl_success)
        return false;
    if (problem.wanted == source &&
        dnnl_convolution_backward_data_primitive_desc_create(plan.fill(), engine.handle.get(), dnnl_convolution_direct, x, w, y, g.strides,
                                                             g.dilates, g.before, g.after, forward.get(), nullptr) != dnnl_success)
        return false;
    if (problem.wanted == weights &&
        dnnl_convolution_backward_weights_primitive_desc_create(plan.fill(), engine.handle.get(), dnnl_convolution_direct, x, w, nullptr, y,
                                                                g.strides, g.dilates, g.before, g.after, forward.get(),
                                                                nullptr) != dnnl_success)
        return false;
    return !is_reference(plan);
}

// Layouts to request from oneDNN: channels-last images keep their layout, unless `is_free`; it chooses the others.
bool wanted_layouts(const convolution_problem& problem, bool is_free, layouts& wanted) {
    for (auto which : {source, weights, result}) {
        const strided operand = counted(problem, which);
        const auto type = factor_type_of(operand.dtype);
        const bool stays = which != weights && !is_free && is_channels_last(operand);
        if (stays ? !describe(operand, type, 0, wanted[which])
                  : dnnl_memory_desc_create_with_tag(wanted[which].fill(), operand.rank, operand.sizes, type, dnnl_format_tag_any) != dnnl_success)
            return false;
    }
    return true;
}

void prepare(const convolution_problem& problem, const strided* inputs, const epilogue& epilogue, const engine& engine, primitive& made) {
    layouts given, wanted;
    owned_layout bias, no_bias;
    owned_attributes attributes, signing_attributes, none;
    for (auto which : {source, weights, result})
        if (!describe(counted(problem, which), factor_type_of(problem.operands[which]->dtype), 0, given[which])) return;
    if (starts_with_bias(inputs, epilogue, 1)) {
        const auto& added = inputs[epilogue.steps[0].operand];
        const dnnl_dims_t sizes = {added.sizes[1]}, strides = {1};
        if (dnnl_memory_desc_create_with_strides(bias.fill(), 1, sizes, type_of(added.dtype), strides) != dnnl_success) return;
    }
    const bool is_expressible = post_ops_of(inputs, epilogue, static_cast<bool>(bias), attributes);
    owned_plan plan;
    for (const bool leaves_epilogue : {false, true})
        for (const bool is_free : {false, true}) {
            if (made.is_ready() || (!leaves_epilogue && !is_expressible) || !wanted_layouts(problem, is_free, wanted)) continue;
            if (!plan_convolution(problem, engine, wanted, leaves_epilogue ? no_bias : bias, leaves_epilogue ? none : attributes, plan))
                continue;
            made.leaves_epilogue = leaves_epilogue;
            const bool signs_zeros = made.flags_to_watch(epilogue) && implementation_of(plan).find("gemm:") != std::string_view::npos;
            if (signs_zeros && (!post_ops_of(inputs, epilogue, static_cast<bool>(bias), signing_attributes, true) ||
                                !plan_convolution(problem, engine, wanted, bias, signing_attributes, plan)))
                continue;
            for (auto which : {source, weights, result})
                if (!made.add_operand(engine, plan, arguments_of[problem.wanted][which], given[which], which == problem.wanted)) return;
            if (!leaves_epilogue && !made.add_epilogue(engine, inputs, epilogue, bias, signs_zeros)) return;
            made.create(plan);
        }
}

bool repeats(const strided& operand) {
    for (int dim = 0; dim < operand.rank; ++dim)
        if (operand.strides[dim] == 0 && operand.sizes[dim] > 1) return true;
    return false;
}

// Write out a broadcast operand, such as the gradient of a sum, channels last: oneDNN has no such layouts.
bool write_out(const strided*& operand, strided& written, memory& block) {
    written = *operand;
    int64_t extent = 1;
    for (int step = 0; step < written.rank; ++step) {
        const int dim = step == 0 ? 1 : step == written.rank - 1 ? 0 : written.rank - step;
        written.strides[dim] = extent;
        extent *= written.sizes[dim];
    }
    const int64_t item_size = written.dtype.bits / 8;
    block = allocate(extent * item_size);
    if (!block) return false;
    written.data = block.get();
    copy_elements(written.rank, written.sizes, static_cast<const char*>(operand->data), operand->strides, block.get(), written.strides,
                  item_size);
    operand = &written;
    return true;
}

// Integers as floats, in the same layout, for code that supports only these.
bool make_floats(const strided*& operand, strided& made, memory& block) {
    made = *operand;
    const int64_t extent = extent_of(made.rank, made.sizes, made.strides);
    block = allocate(extent * static_cast<int64_t>(sizeof(float)));
    if (!block) return false;
    const auto* from = static_cast<const int8_t*>(made.data);
    auto* to = reinterpret_cast<float*>(block.get());
    for (int64_t each = 0; each < extent; ++each) to[each] = from[each];
    made.dtype = {2, 32, 1};
    made.data = to;
    made.is_constant = false;
    operand = &made;
    return true;
}

int32_t run(context* context, convolution_problem problem, const strided* inputs, const epilogue& epilogue);

// Without instructions for it, oneDNN multiplies integers with fewer bits than they have.
bool multiplies_bytes() {
#if defined(__x86_64__)
    return __builtin_cpu_supports("avx512vnni") != 0;
#else
    return false;
#endif
}

// An integer convolution with a float result, where oneDNN has none.
int32_t run_as_floats(context* context, convolution_problem problem, const strided* inputs, const epilogue& epilogue) {
    strided made[2];
    memory blocks[2];
    if (!make_floats(problem.operands[source], made[0], blocks[0]) || !make_floats(problem.operands[weights], made[1], blocks[1]))
        return fail(PRECAST_OUT_OF_MEMORY, "no memory for an operand of a convolution");
    int32_t count = 2;
    for (int32_t step = 0; step < epilogue.size; ++step) count = std::max(count, epilogue.steps[step].operand + 1);
    std::vector<strided> all(inputs, inputs + count);
    all[0] = made[0], all[1] = made[1];
    return run(context, problem, all.data(), epilogue);
}

int32_t run(context* context, convolution_problem problem, const strided* inputs, const epilogue& epilogue) {
    strided written[operand_count];
    memory blocks[operand_count];
    for (auto which : {source, weights, result})
        if (which != problem.wanted && repeats(*problem.operands[which]) && !problem.is_empty() &&
            !write_out(problem.operands[which], written[which], blocks[which]))
            return fail(PRECAST_OUT_OF_MEMORY, "no memory for an operand of a convolution");
    if (convolve_by_winograd(problem, *context, inputs, epilogue) || convolve_directly(problem, *context, inputs, epilogue) ||
        pixel_product(problem).run(*context, inputs, epilogue) || depthwise_filter_gradient(problem))
        return PRECAST_OK;
    const auto& computed = *problem.operands[problem.wanted];
    const bool is_mixed = problem.operands[source]->dtype.code != computed.dtype.code;
    primitive* found = nullptr;
    if (is_mixed && !multiplies_bytes()) return run_as_floats(context, problem, inputs, epilogue);
    if (type_of(computed.dtype) != dnnl_data_type_undef && !problem.is_empty()) {
        if (!context->convolutions) context->convolutions = std::make_unique<primitives>();
        auto& cache = static_cast<primitives&>(*context->convolutions);
        auto key = key_of(problem.wanted, inputs, computed, 2, epilogue);
        key.insert(key.end(), problem.numbers, problem.numbers + 1 + 3 * problem.spatial());
        found = &cache.find(std::move(key), [&](const engine& engine, primitive& made) {
            prepare(problem, inputs, epilogue, engine, made);
        });
        if (found->is_ready()) {
            std::vector<const strided*> tensors(problem.operands, problem.operands + operand_count);
            const nan_watch watch(context->watch, found->flags_to_watch(epilogue));
            if (!found->run(*context, cache.engine, std::move(tensors), inputs, epilogue))
                return fail(PRECAST_FAILED, "oneDNN failed in a convolution");
            if (watch.saw_one()) {
                const auto status = run(context, problem, inputs, {nullptr, 0});
                if (!status) run_epilogue(inputs, computed, epilogue);
                return status;
            }
        }
    }
    const bool is_done = found && found->is_ready();
    if (!is_done && is_mixed) return run_as_floats(context, problem, inputs, epilogue);
    if (!is_done)
        if (const auto status = convolve_any(problem)) return status;
    if (!is_done || found->leaves_epilogue) run_epilogue(inputs, computed, epilogue);
    return PRECAST_OK;
}

}  // namespace

// Inputs: source, weights. Output: result.
int32_t convolution(context* context, const strided* inputs, const strided* outputs, const int64_t* numbers,
                    const epilogue& epilogue) {
    return run(context, {result, {&inputs[0], &inputs[1], &outputs[0]}, numbers}, inputs, epilogue);
}

// The same where each channel has its own filters.
int32_t depthwise_convolution(context* context, const strided* inputs, const strided* outputs, const int64_t* numbers,
                              const epilogue& prologue, const epilogue& epilogue) {
    const convolution_problem problem{result, {&inputs[0], &inputs[1], &outputs[0]}, numbers};
    if (convolve_depthwise(problem, *context, inputs, prologue, epilogue)) return PRECAST_OK;
    if (!prologue.size || problem.is_empty()) return run(context, problem, inputs, epilogue);
    int32_t count = 2;
    for (const auto* each : {&prologue, &epilogue})
        for (int32_t step = 0; step < each->size; ++step) count = std::max(count, each->steps[step].operand + 1);
    std::vector<strided> prepared(inputs, inputs + count);
    const strided* read = &inputs[0];
    memory block;
    if (!write_out(read, prepared[0], block)) return fail(PRECAST_OUT_OF_MEMORY, "no memory for an operand of a convolution");
    run_epilogue(inputs, prepared[0], prologue);
    return run(context, {result, {&prepared[0], &inputs[1], &outputs[0]}, numbers}, prepared.data(), epilogue);
}

// Inputs: gradient of the result, weights. Output: gradient of the source.
int32_t convolution_backward_data(context* context, const strided* inputs, const strided* outputs, const int64_t* numbers) {
    return run(context, {source, {&outputs[0], &inputs[1], &inputs[0]}, numbers}, inputs, {nullptr, 0});
}

// Inputs: source, gradient of the result. Output: gradient of the weights.
int32_t convolution_backward_weights(context* context, const strided* inputs, const strided* outputs, const int64_t* numbers) {
    return run(context, {weights, {&inputs[0], &outputs[0], &inputs[1]}, numbers}, inputs, {nullptr, 0});
}

}  // namespace precast
