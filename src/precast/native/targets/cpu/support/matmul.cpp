// GEMMs: by oneDNN, or by loops of ours that are faster for some shapes; by plain loops for double and integers.
//
// Inputs: left, right. Output: result. All have the same rank; leading dimensions are batches. Numbers: the variant, if autotuning
// chose one at compile time.
#include "epilogue.h"
#include "plain_product.h"
#include "primitive.h"
#include "product.h"

namespace precast {

namespace {

bool plan_product(const engine& engine, const owned_layout (&layouts)[3], const owned_layout& bias, const owned_attributes& attributes,
                  owned_plan& plan) {
    return dnnl_matmul_primitive_desc_create(plan.fill(), engine.handle.get(), layouts[0].get(), layouts[1].get(),
                                             bias.get(), layouts[2].get(), attributes.get()) == dnnl_success &&
           !is_reference(plan);
}

void prepare(const strided* inputs, const strided& result, const epilogue& epilogue, const engine& engine, primitive& made) {
    const auto type = type_of(result.dtype);
    const int last = result.rank - 1;
    owned_layout given[3], wanted[3], bias, no_bias;
    const strided* operands[] = {&inputs[0], &inputs[1], &result};
    for (int each = 0; each < 3; ++each) {
        // Batches may be broadcast; rows broadcast in memory are still separate rows.
        const int broadcast_dims = each < 2 ? result.rank - 2 : 0;
        if (!describe(*operands[each], type, broadcast_dims, given[each]) || !describe(*operands[each], type, broadcast_dims, wanted[each]))
            return;
    }
    // A constant may have oneDNN's preferred layout; it is reordered only once.
    if (inputs[1].is_constant &&
        dnnl_memory_desc_create_with_tag(wanted[1].fill(), inputs[1].rank, inputs[1].sizes, type, dnnl_format_tag_any) != dnnl_success)
        return;
    const bool has_bias = starts_with_bias(inputs, epilogue, last);
    if (has_bias) {
        const auto& added = inputs[epilogue.steps[0].operand];
        if (!describe(added, type_of(added.dtype), added.rank, bias)) return;
    }
    owned_attributes attributes, none;
    owned_plan plan;
    made.leaves_epilogue = !post_ops_of(inputs, epilogue, has_bias, attributes) || !plan_product(engine, wanted, bias, attributes, plan);
    if (made.leaves_epilogue && !plan_product(engine, wanted, no_bias, none, plan)) return;
    constexpr int arguments[] = {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST};
    for (int each = 0; each < 3; ++each)
        if (!made.add_operand(engine, plan, arguments[each], given[each], each == 2)) return;
    if (!made.leaves_epilogue && !made.add_epilogue(engine, inputs, epilogue, bias)) return;
    made.create(plan);
}

// The variants of a GEMM, as numbered in generated code. Without a number, or with 0, the rule of thumb decides.
enum way { by_rule, by_onednn, by_own_loops };

// Returns false if another variant was chosen, or is likely to be better: packed constants are better still.
bool run_own_loops(context& context, const strided* inputs, const strided& result, way chosen, const epilogue& epilogue) {
    if (chosen == by_onednn) return false;
    if (multiply_by_constant(context, inputs, result, epilogue)) return true;
    const auto problem = product_as_it_lies(inputs, result, epilogue);
    const bool is_wanted = problem && (chosen == by_own_loops || (!inputs[1].is_constant && is_best_as_it_lies(*problem)));
    return is_wanted && multiply_as_it_lies(context, *problem);
}

bool is_empty(const strided* inputs, const strided& result) {
    if (inputs[0].sizes[result.rank - 1] == 0) return true;
    for (int dim = 0; dim < result.rank; ++dim)
        if (result.sizes[dim] == 0) return true;
    return false;
}

}  // namespace

int32_t matmul(context* context, const strided* inputs, const strided* outputs, const int64_t* numbers, const epilogue& epilogue) {
    const auto& result = outputs[0];
    primitive* found = nullptr;
    const auto chosen = numbers ? static_cast<way>(numbers[0]) : by_rule;
    if (!is_empty(inputs, result) && run_own_loops(*context, inputs, result, chosen, epilogue)) return PRECAST_OK;
    if (type_of(result.dtype) != dnnl_data_type_undef && !is_empty(inputs, result)) {
        if (!context->matmuls) context->matmuls = std::make_unique<primitives>();
        auto& cache = static_cast<primitives&>(*context->matmuls);
        found = &cache.find(key_of(0, inputs, result, 2, epilogue), [&](const engine& engine, primitive& made) {
            prepare(inputs, result, epilogue, engine, made);
        });
        if (found->is_ready()) {
            const nan_watch watch(context->watch, found->flags_to_watch(epilogue));
            if (!found->run(*context, cache.engine, {&inputs[0], &inputs[1], &result}, inputs, epilogue))
                return fail(PRECAST_FAILED, "oneDNN failed in a matrix product");
            if (watch.saw_one()) {
                const auto status = matmul(context, inputs, outputs, numbers, {nullptr, 0});
                if (!status) run_epilogue(inputs, result, epilogue);
                return status;
            }
        }
    }
    const bool is_done = found && found->is_ready();
    if (!is_done)
        if (const auto status = multiply_plainly(inputs[0], inputs[1], result)) return status;
    if (!is_done || found->leaves_epilogue) run_epilogue(inputs, result, epilogue);
    return PRECAST_OK;
}

}  // namespace precast
