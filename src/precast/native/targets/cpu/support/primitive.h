// A oneDNN primitive with its operands: prepared once per sizes, layouts and epilogue, then executed many times.
#pragma once

#include <omp.h>

#include <algorithm>
#include <map>
#include <vector>

#include "context.h"
#include "nan_watch.h"
#include "onednn.h"
#include "packing.h"

namespace precast {

using problem_key = std::vector<int64_t>;

inline void append_layout(problem_key& key, const strided& operand) {
    key.push_back(operand.is_constant);
    key.insert(key.end(), operand.sizes, operand.sizes + operand.rank);
    key.insert(key.end(), operand.strides, operand.strides + operand.rank);
}

// The key of a prepared primitive. The number of threads determines how oneDNN divides the work.
inline problem_key key_of(int64_t kind, const strided* inputs, const strided& result, size_t own_inputs,
                          const epilogue& epilogue) {
    problem_key key{kind, result.dtype.code * 256 + result.dtype.bits, inputs[0].dtype.code * 256 + inputs[0].dtype.bits, omp_get_max_threads()};
    for (size_t each = 0; each < own_inputs; ++each) append_layout(key, inputs[each]);
    append_layout(key, result);
    for (int32_t each = 0; each < epilogue.size; ++each) {
        key.push_back(static_cast<int64_t>(epilogue.steps[each].kind));
        if (epilogue.steps[each].operand >= 0) append_layout(key, inputs[epilogue.steps[each].operand]);
    }
    return key;
}

// Sizes and strides in oneDNN's form: broadcast dimensions, among the first `broadcast_dims`, have size 1, and where strides do
// not matter, they are those of a row-major tensor.
inline bool describe(const strided& operand, dnnl_data_type_t type, int broadcast_dims, owned_layout& layout) {
    dnnl_dims_t sizes, strides;
    int64_t extent = 1;
    for (int dim = operand.rank - 1; dim >= 0; --dim) {
        sizes[dim] = dim < broadcast_dims && operand.strides[dim] == 0 ? 1 : operand.sizes[dim];
        strides[dim] = sizes[dim] == 1 ? extent : operand.strides[dim];
        if (strides[dim] == 0) return false;
        extent = std::max(extent, sizes[dim] * strides[dim]);
    }
    return dnnl_memory_desc_create_with_strides(layout.fill(), operand.rank, sizes, type, strides) == dnnl_success;
}

class primitive {
public:
    bool is_ready() const { return static_cast<bool>(handle); }
    // Whether the caller must run the epilogue itself, over the result.
    bool leaves_epilogue = false;
    unsigned flags_to_watch(const epilogue& epilogue) const { return leaves_epilogue ? 0 : precast::flags_to_watch(epilogue); }

    bool create(const owned_plan& plan) { return dnnl_primitive_create(handle.fill(), plan.get()) == dnnl_success; }

    // An operand that is in memory as `given`, and that the primitive expects as in `plan`.
    bool add_operand(const engine& engine, const owned_plan& plan, int argument, const owned_layout& given, bool is_output) {
        operand added;
        added.argument = argument;
        added.is_output = is_output;
        if (dnnl_memory_create(added.given.fill(), given.get(), engine.handle.get(), DNNL_MEMORY_NONE) != dnnl_success) return false;
        const auto wanted = dnnl_primitive_desc_query_md(plan.get(), dnnl_query_exec_arg_md, argument);
        if (!dnnl_memory_desc_equal(wanted, given.get())) {
            added.packing = packing::between(given.get(), wanted, is_output);
            owned_plan reorder;
            const const_dnnl_memory_desc_t from = is_output ? wanted : given.get(), to = is_output ? given.get() : wanted;
            if (dnnl_memory_create(added.arranged.fill(), wanted, engine.handle.get(), DNNL_MEMORY_NONE) != dnnl_success ||
                dnnl_reorder_primitive_desc_create(reorder.fill(), from, engine.handle.get(), to, engine.handle.get(), nullptr) != dnnl_success ||
                dnnl_primitive_create(added.reorder.fill(), reorder.get()) != dnnl_success)
                return false;
            added.offset = scratch_size;
            added.size = static_cast<int64_t>(dnnl_memory_desc_get_size(wanted));
            // One weight may be used both as it is and transposed: the same address, a different matrix.
            added.layout = layout_of(wanted).key();
            const auto from_key = layout_of(given.get()).key();
            added.layout.insert(added.layout.end(), from_key.begin(), from_key.end());
            scratch_size += (added.size + 63) / 64 * 64;
        }
        operands.push_back(std::move(added));
        return true;
    }

    // The operands of an epilogue that the primitive runs itself, as post-ops made by `post_ops_of`.
    bool add_epilogue(const engine& engine, const strided* inputs, const epilogue& epilogue, const owned_layout& bias,
                      bool signs_zeros = false) {
        int post_op = 0;
        for (int32_t each = 0; each < epilogue.size; ++each) {
            const bool is_bias = bias && each == 0;
            const int place = post_op;
            if (!is_bias) post_op += signs_zeros && epilogue.steps[each].kind == finish_kind::relu ? 2 : 1;
            if (epilogue.steps[each].operand < 0) continue;
            const auto& input = inputs[epilogue.steps[each].operand];
            operand added;
            added.argument = is_bias ? DNNL_ARG_BIAS : DNNL_ARG_ATTR_MULTIPLE_POST_OP(place) | DNNL_ARG_SRC_1;
            owned_layout layout;
            if (!describe(input, type_of(input.dtype), input.rank, layout) ||
                dnnl_memory_create(added.given.fill(), is_bias ? bias.get() : layout.get(), engine.handle.get(), DNNL_MEMORY_NONE) != dnnl_success)
                return false;
            operands.push_back(std::move(added));
        }
        return true;
    }

    // Runs with the routine's own operands, in the order in which they were added, and with those of the epilogue.
    bool run(context& context, const engine& engine, std::vector<const strided*> tensors, const strided* inputs,
             const epilogue& epilogue) {
        for (int32_t each = 0; each < epilogue.size && !leaves_epilogue; ++each)
            if (epilogue.steps[each].operand >= 0) tensors.push_back(&inputs[epilogue.steps[each].operand]);
        return execute(context, engine, tensors.data());
    }

private:
    bool execute(context& context, const engine& engine, const strided* const* tensors) {
        char* scratch = scratch_size ? context.scratch(scratch_size) : nullptr;
        if (scratch_size && !scratch) return false;
        bound.resize(operands.size());
        for (size_t each = 0; each < operands.size(); ++each) {
            auto& operand = operands[each];
            if (dnnl_memory_set_data_handle(operand.given.get(), tensors[each]->data) != dnnl_success) return false;
            bound[each] = {operand.argument, operand.reorder ? operand.arranged.get() : operand.given.get()};
            if (!operand.reorder) continue;
            char* place = tensors[each]->is_constant ? packed(context, engine, operand, tensors[each]->data) : scratch + operand.offset;
            if (!place || dnnl_memory_set_data_handle(operand.arranged.get(), place) != dnnl_success) return false;
            if (!operand.is_output && !tensors[each]->is_constant && !rearrange(engine, operand)) return false;
        }
        if (dnnl_primitive_execute(handle.get(), engine.stream.get(), static_cast<int>(bound.size()), bound.data()) != dnnl_success) return false;
        for (auto& operand : operands)
            if (operand.is_output && operand.reorder && !rearrange(engine, operand)) return false;
        return dnnl_stream_wait(engine.stream.get()) == dnnl_success;
    }

    struct operand {
        int argument = 0;
        bool is_output = false;
        owned_memory given, arranged;  // the second where the primitive wants another layout
        owned_primitive reorder;
        precast::packing packing;
        int64_t offset = 0, size = 0;
        std::vector<int64_t> layout;
        std::map<const void*, char*> packed;
    };

    static bool rearrange(const engine& engine, const operand& operand) {
        const auto from = operand.is_output ? operand.arranged.get() : operand.given.get();
        const auto to = operand.is_output ? operand.given.get() : operand.arranged.get();
        if (operand.packing) {
            void *source = nullptr, *target = nullptr;
            dnnl_memory_get_data_handle(from, &source);
            dnnl_memory_get_data_handle(to, &target);
            operand.packing.run(static_cast<const float*>(source), static_cast<float*>(target));
            return true;
        }
        const dnnl_exec_arg_t bound[] = {{DNNL_ARG_FROM, from}, {DNNL_ARG_TO, to}};
        return dnnl_primitive_execute(operand.reorder.get(), engine.stream.get(), 2, bound) == dnnl_success;
    }

    // The constant at `data` in the layout of this primitive, reordered on first use.
    static char* packed(context& context, const engine& engine, operand& operand, void* data) {
        const auto found = operand.packed.find(data);
        if (found != operand.packed.end()) return found->second;
        auto key = operand.layout;
        key.push_back(static_cast<int64_t>(reinterpret_cast<intptr_t>(data)));
        char* place = context.packed.find(key, operand.size, [&](char* made) {
            return dnnl_memory_set_data_handle(operand.arranged.get(), made) == dnnl_success && rearrange(engine, operand) &&
                   dnnl_stream_wait(engine.stream.get()) == dnnl_success;
        });
        if (place) operand.packed[data] = place;
        return place;
    }

    owned_primitive handle;
    std::vector<operand> operands;
    std::vector<dnnl_exec_arg_t> bound;
    int64_t scratch_size = 0;
};

// Primitives of one context. With dynamic sizes there may be too many: then all are discarded, and prepared again on use.
struct primitives : routine_cache {
    static constexpr size_t limit = 2048;
    precast::engine engine;
    std::map<problem_key, primitive> known;

    template <class Prepare>
    primitive& find(problem_key key, Prepare prepare) {
        if (known.size() >= limit && !known.count(key)) known.clear();
        auto [found, is_new] = known.try_emplace(std::move(key));
        if (is_new && engine.stream) prepare(engine, found->second);
        return found->second;
    }
};

// Whether the first step of an epilogue is a bias in oneDNN's sense: added along one dimension only.
inline bool starts_with_bias(const strided* inputs, const epilogue& epilogue, int channel) {
    if (!epilogue.size || epilogue.steps[0].kind != finish_kind::add) return false;
    const auto& operand = inputs[epilogue.steps[0].operand];
    for (int dim = 0; dim < operand.rank; ++dim)
        if (dim == channel ? operand.strides[dim] != 1 : operand.strides[dim] != 0) return false;
    return true;
}

// An epilogue as oneDNN's post-ops, from step `first` on. With `signs_zeros`, for an implementation whose relu returns −0, which
// adding 0 turns into 0.
inline bool post_ops_of(const strided* inputs, const epilogue& epilogue, int first, owned_attributes& attributes,
                        bool signs_zeros = false) {
    owned_post_ops steps;
    if (dnnl_post_ops_create(steps.fill()) != dnnl_success) return false;
    for (int32_t each = first; each < epilogue.size; ++each) {
        const auto& step = epilogue.steps[each];
        owned_layout layout;
        dnnl_status_t status = dnnl_success;
        switch (step.kind) {
            case finish_kind::add:
            case finish_kind::mul:
                if (!describe(inputs[step.operand], type_of(inputs[step.operand].dtype), inputs[step.operand].rank, layout)) return false;
                status = dnnl_post_ops_append_binary(steps.get(), step.kind == finish_kind::add ? dnnl_binary_add : dnnl_binary_mul,
                                                     layout.get());
                break;
            // These three are run under a watch for NaN, which the first two turn into 0, and the third produces from infinity.
            case finish_kind::relu:
                if (!can_watch) return false;
                status = dnnl_post_ops_append_eltwise(steps.get(), dnnl_eltwise_relu, 0, 0);
                if (signs_zeros && status == dnnl_success) status = dnnl_post_ops_append_eltwise(steps.get(), dnnl_eltwise_linear, 1, 0);
                break;
            case finish_kind::relu6:
                if (!can_watch) return false;
                status = dnnl_post_ops_append_eltwise(steps.get(), dnnl_eltwise_clip, 0, 6);
                break;
            case finish_kind::gelu:
                if (!can_watch) return false;
                status = dnnl_post_ops_append_eltwise(steps.get(), dnnl_eltwise_gelu_erf, 0, 0);
                break;
            case finish_kind::gelu_doubled: status = dnnl_post_ops_append_eltwise(steps.get(), dnnl_eltwise_gelu_erf, 0, 0); break;
            case finish_kind::gelu_tanh: status = dnnl_post_ops_append_eltwise(steps.get(), dnnl_eltwise_gelu_tanh, 0, 0); break;
            case finish_kind::silu: status = dnnl_post_ops_append_eltwise(steps.get(), dnnl_eltwise_swish, 1, 0); break;
            case finish_kind::tanh: status = dnnl_post_ops_append_eltwise(steps.get(), dnnl_eltwise_tanh, 0, 0); break;
            case finish_kind::sigmoid: status = dnnl_post_ops_append_eltwise(steps.get(), dnnl_eltwise_logistic, 0, 0); break;
            case finish_kind::hardswish: status = dnnl_post_ops_append_eltwise(steps.get(), dnnl_eltwise_hardswish, 1.0f / 6, 0.5f); break;
        }
        if (status != dnnl_success) return false;
    }
    return dnnl_primitive_attr_create(attributes.fill()) == dnnl_success &&
           dnnl_primitive_attr_set_post_ops(attributes.get(), steps.get()) == dnnl_success;
}

}  // namespace precast
