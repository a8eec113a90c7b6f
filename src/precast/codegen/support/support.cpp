// The C interface of precast.h over the tables that the compiler generated.
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <new>
#include <vector>

#include "context.h"

namespace precast {

namespace {
thread_local char last_error[1024] = "";
constexpr int64_t alignment = 64;

int64_t rounded_up(int64_t size) { return (size + alignment - 1) / alignment * alignment; }
}  // namespace

precast_status fail(precast_status status, const char* format, ...) {
    va_list arguments;
    va_start(arguments, format);
    std::vsnprintf(last_error, sizeof last_error, format, arguments);
    va_end(arguments);
    return status;
}

context::~context() { std::free(memory); }

char* context::arena(int64_t size) {
    if (size > capacity) {
        std::free(memory);
        memory = static_cast<char*>(std::aligned_alloc(alignment, static_cast<size_t>(rounded_up(size))));
        capacity = memory ? size : 0;
    }
    return memory;
}

int32_t call_fallback(const frame& frame, int32_t entry, int32_t step, const precast_tensor* inputs, size_t input_count,
                      const precast_tensor* outputs, size_t output_count) {
    const auto& context = *frame.context;
    if (context.fallback(context.fallback_data, entry, step, inputs, input_count, outputs, output_count, frame.sizes,
                         entries[entry].size_count))
        return fail(PRECAST_FAILED, "step %d of entry '%s' failed in the caller's fallback", step, entries[entry].name);
    return PRECAST_OK;
}

}  // namespace precast

using namespace precast;

struct precast_model {
    precast_open_options options{};
    std::vector<std::vector<precast_tensor>> weights;  // one list an entry, in the order of its weight inputs
    std::mutex mutex;
    std::vector<std::unique_ptr<context>> idle;

    std::unique_ptr<context> take() {
        const std::lock_guard<std::mutex> lock(mutex);
        if (idle.empty()) return std::make_unique<context>(options);
        auto found = std::move(idle.back());
        idle.pop_back();
        return found;
    }
    void give_back(std::unique_ptr<context> used) {
        const std::lock_guard<std::mutex> lock(mutex);
        idle.push_back(std::move(used));
    }
};

namespace {

bool is_same(precast_dtype a, precast_dtype b) { return a.code == b.code && a.bits == b.bits && a.lanes == b.lanes; }

void* start_of(const precast_tensor& tensor) { return static_cast<char*>(tensor.data) + tensor.byte_offset; }

precast_status check_kind(const entry& entry, const char* what, const tensor_spec& spec, const precast_tensor& tensor) {
    if (tensor.rank != spec.rank)
        return fail(PRECAST_MISMATCH, "entry '%s', %s '%s': expected %d dimensions, got %d", entry.name, what, spec.name,
                    spec.rank, tensor.rank);
    if (!is_same(tensor.dtype, spec.dtype))
        return fail(PRECAST_MISMATCH, "entry '%s', %s '%s': expected dtype code %d with %d bits, got %d with %d", entry.name,
                    what, spec.name, spec.dtype.code, spec.dtype.bits, tensor.dtype.code, tensor.dtype.bits);
    if (tensor.device.type != 1)
        return fail(PRECAST_MISMATCH, "entry '%s', %s '%s' is not on the CPU", entry.name, what, spec.name);
    if (tensor.rank > 0 && !tensor.shape)
        return fail(PRECAST_INVALID_ARGUMENT, "entry '%s', %s '%s' has no shape", entry.name, what, spec.name);
    return PRECAST_OK;
}

precast_status check_shape(const entry& entry, const char* what, const tensor_spec& spec, const precast_tensor& tensor,
                           const int64_t* shape) {
    bool is_empty = false;
    for (int32_t dim = 0; dim < spec.rank; ++dim) {
        is_empty |= shape[dim] == 0;
        if (tensor.shape[dim] != shape[dim])
            return fail(PRECAST_MISMATCH, "entry '%s', %s '%s': dimension %d is %lld, expected %lld", entry.name, what,
                        spec.name, dim, static_cast<long long>(tensor.shape[dim]), static_cast<long long>(shape[dim]));
    }
    if (!tensor.data && !is_empty)
        return fail(PRECAST_INVALID_ARGUMENT, "entry '%s', %s '%s' has no data", entry.name, what, spec.name);
    return PRECAST_OK;
}

// Whether a tensor lies in memory as expected; strides of dimensions that are never stepped along do not matter.
bool has_strides(const precast_tensor& tensor, const int64_t* shape, const int64_t* strides) {
    int64_t row_major = 1;
    bool is_empty = false, is_same = true;
    for (int32_t dim = tensor.rank - 1; dim >= 0; --dim) {
        const int64_t actual = tensor.strides ? tensor.strides[dim] : row_major;
        is_same &= shape[dim] == 1 || actual == strides[dim];
        is_empty |= shape[dim] == 0;
        row_major *= shape[dim];
    }
    return is_same || is_empty;
}

void copy_elements(int32_t rank, const int64_t* shape, const char* from, const int64_t* from_strides, char* to,
                   const int64_t* to_strides, int64_t item_size) {
    if (rank == 0) {
        std::memcpy(to, from, static_cast<size_t>(item_size));
        return;
    }
    for (int64_t position = 0; position < shape[0]; ++position)
        copy_elements(rank - 1, shape + 1, from + position * from_strides[0] * item_size, from_strides + 1,
                      to + position * to_strides[0] * item_size, to_strides + 1, item_size);
}

// An input in the layout that the program was compiled for.
precast_status arranged(const precast_tensor& tensor, const int64_t* shape, const int64_t* strides,
                        std::vector<std::unique_ptr<char[]>>& copies, void** data) {
    *data = start_of(tensor);
    if (has_strides(tensor, shape, strides)) return PRECAST_OK;
    int64_t length = 1, row_major[PRECAST_MAX_RANK], step = 1;
    for (int32_t dim = tensor.rank - 1; dim >= 0; --dim) {
        length += (shape[dim] - 1) * strides[dim];
        row_major[dim] = step;
        step *= shape[dim];
    }
    const int64_t item_size = tensor.dtype.bits / 8;
    copies.emplace_back(new char[static_cast<size_t>(length * item_size)]);
    copy_elements(tensor.rank, shape, static_cast<const char*>(*data), tensor.strides ? tensor.strides : row_major,
                  copies.back().get(), strides, item_size);
    *data = copies.back().get();
    return PRECAST_OK;
}

// Inputs and weights of one call in the program's order, checked, with the sizes and layouts that follow from them.
struct call {
    std::vector<const precast_tensor*> inputs;
    std::vector<int64_t> sizes, layouts;
    const int64_t* output_layouts = nullptr;
};

precast_status prepare(const precast_model& model, size_t number, const precast_tensor* inputs, size_t input_count,
                       call& prepared) {
    const entry& entry = entries[number];
    const auto& weights = model.weights[number];
    if (input_count + weights.size() != entry.input_count)
        return fail(PRECAST_MISMATCH, "entry '%s' takes %zu inputs, got %zu", entry.name,
                    entry.input_count - weights.size(), input_count);
    size_t next_input = 0, next_weight = 0, layout_size = 0;
    for (size_t position = 0; position < entry.input_count; ++position) {
        const tensor_spec& spec = entry.inputs[position];
        prepared.inputs.push_back(spec.is_weight ? &weights[next_weight++] : &inputs[next_input++]);
        const auto status = check_kind(entry, spec.is_weight ? "weight" : "input", spec, *prepared.inputs.back());
        if (status) return status;
        layout_size += 2 * static_cast<size_t>(spec.rank);
    }
    for (size_t each = 0; each < entry.size_count; ++each) {
        const auto [input, dimension] = entry.sizes[each];
        const precast_tensor& tensor = *prepared.inputs[input];
        if (dimension < 0 && !tensor.data)
            return fail(PRECAST_INVALID_ARGUMENT, "entry '%s', input '%s' has no data", entry.name, entry.inputs[input].name);
        prepared.sizes.push_back(dimension < 0 ? *static_cast<const int64_t*>(start_of(tensor)) : tensor.shape[dimension]);
        if (prepared.sizes.back() < 0)
            return fail(PRECAST_MISMATCH, "entry '%s', input '%s': a size is negative", entry.name, entry.inputs[input].name);
    }
    const size_t output_start = layout_size;
    for (size_t each = 0; each < entry.output_count; ++each) layout_size += 2 * static_cast<size_t>(entry.outputs[each].rank);
    prepared.layouts.resize(layout_size + 1);
    entry.layouts(prepared.sizes.data(), prepared.layouts.data());
    prepared.output_layouts = prepared.layouts.data() + output_start;
    const int64_t* layout = prepared.layouts.data();
    for (size_t position = 0; position < entry.input_count; ++position) {
        const tensor_spec& spec = entry.inputs[position];
        const auto status = check_shape(entry, spec.is_weight ? "weight" : "input", spec, *prepared.inputs[position], layout);
        if (status) return status;
        layout += 2 * spec.rank;
    }
    return PRECAST_OK;
}

precast_status check_outputs(const entry& entry, const precast_tensor* outputs, size_t output_count, const int64_t* layout) {
    if (output_count != entry.output_count)
        return fail(PRECAST_MISMATCH, "entry '%s' gives %zu outputs, got %zu", entry.name, entry.output_count, output_count);
    for (size_t each = 0; each < output_count; ++each) {
        const tensor_spec& spec = entry.outputs[each];
        auto status = check_kind(entry, "output", spec, outputs[each]);
        if (!status) status = check_shape(entry, "output", spec, outputs[each], layout);
        if (status) return status;
        if (!has_strides(outputs[each], layout, layout + spec.rank))
            return fail(PRECAST_MISMATCH, "entry '%s', output '%s' has other strides than precast_infer gives", entry.name,
                        spec.name);
        layout += 2 * spec.rank;
    }
    return PRECAST_OK;
}

precast_status run(precast_model& model, size_t number, const precast_tensor* inputs, size_t input_count,
                   const precast_tensor* outputs, size_t output_count) {
    const entry& entry = entries[number];
    call prepared;
    auto status = prepare(model, number, inputs, input_count, prepared);
    if (!status) status = check_outputs(entry, outputs, output_count, prepared.output_layouts);
    if (status) return status;
    std::vector<void*> input_data(entry.input_count), output_data;
    std::vector<std::unique_ptr<char[]>> copies;
    const int64_t* layout = prepared.layouts.data();
    for (size_t position = 0; position < entry.input_count; ++position) {
        const int32_t rank = entry.inputs[position].rank;
        status = arranged(*prepared.inputs[position], layout, layout + rank, copies, &input_data[position]);
        if (status) return status;
        layout += 2 * rank;
    }
    for (size_t each = 0; each < output_count; ++each) output_data.push_back(start_of(outputs[each]));
    auto context = model.take();
    const int64_t arena_size = entry.arena_size(prepared.sizes.data());
    char* arena = context->arena(arena_size);
    if (arena_size && !arena)
        return fail(PRECAST_OUT_OF_MEMORY, "no %lld bytes of scratch memory", static_cast<long long>(arena_size));
    status = entry.run({input_data.data(), output_data.data(), arena, prepared.sizes.data(), context.get()});
    model.give_back(std::move(context));
    return status;
}

const precast_named_tensor* find_weight(const precast_open_options& options, const char* name) {
    for (size_t each = 0; each < options.weight_count; ++each)
        if (std::strcmp(options.weights[each].name, name) == 0) return &options.weights[each];
    return nullptr;
}

precast_status open(const precast_open_options& options, precast_model& model) {
    model.options = options;
    for (size_t number = 0; number < entry_count; ++number) {
        const entry& entry = entries[number];
        if (entry.fallback_count && !options.fallback)
            return fail(PRECAST_INVALID_ARGUMENT, "entry '%s' needs a fallback for %zu steps", entry.name, entry.fallback_count);
        auto& bound = model.weights.emplace_back();
        for (size_t position = 0; position < entry.input_count; ++position) {
            const tensor_spec& spec = entry.inputs[position];
            if (!spec.is_weight) continue;
            const auto* weight = find_weight(options, spec.name);
            if (!weight) return fail(PRECAST_MISMATCH, "entry '%s' needs the weight '%s'", entry.name, spec.name);
            const auto status = check_kind(entry, "weight", spec, weight->tensor);
            if (status) return status;
            bound.push_back(weight->tensor);
        }
    }
    return PRECAST_OK;
}

// Runs `body`; memory running out is the only thing below that throws.
template <class Body>
precast_status guarded(Body body) {
    try {
        return body();
    } catch (const std::bad_alloc&) {
        return fail(PRECAST_OUT_OF_MEMORY, "out of memory");
    } catch (...) {
        return fail(PRECAST_FAILED, "internal error");
    }
}

precast_status check_entry(const precast_model* model, size_t number, const void* result) {
    if (!model || !result) return fail(PRECAST_INVALID_ARGUMENT, "a null pointer was given");
    if (number >= entry_count) return fail(PRECAST_INVALID_ARGUMENT, "there is no entry %zu", number);
    return PRECAST_OK;
}

}  // namespace

extern "C" {

uint32_t precast_abi_version(void) { return PRECAST_ABI_VERSION; }

const char* precast_last_error(void) { return last_error; }

precast_status precast_open(const precast_open_options* options, precast_model** model) {
    return guarded([&]() -> precast_status {
        if (!model) return fail(PRECAST_INVALID_ARGUMENT, "a null pointer was given");
        precast_open_options none{};
        none.abi_version = PRECAST_ABI_VERSION;
        const auto& given = options ? *options : none;
        if (given.abi_version != PRECAST_ABI_VERSION)
            return fail(PRECAST_INVALID_ARGUMENT, "this library speaks version %d of the interface, not %u",
                        PRECAST_ABI_VERSION, given.abi_version);
        auto opened = std::make_unique<precast_model>();
        const auto status = open(given, *opened);
        if (!status) *model = opened.release();
        return status;
    });
}

precast_status precast_close(precast_model* model) {
    delete model;
    return PRECAST_OK;
}

precast_status precast_entry_count(const precast_model* model, size_t* count) {
    if (!model || !count) return fail(PRECAST_INVALID_ARGUMENT, "a null pointer was given");
    *count = entry_count;
    return PRECAST_OK;
}

precast_status precast_entry_name(const precast_model* model, size_t number, const char** name) {
    const auto status = check_entry(model, number, name);
    if (!status) *name = entries[number].name;
    return status;
}

precast_status precast_entry_json(const precast_model* model, size_t number, const char** json) {
    const auto status = check_entry(model, number, json);
    if (!status) *json = entries[number].json;
    return status;
}

precast_status precast_infer(precast_model* model, size_t number, const precast_tensor* inputs, size_t input_count,
                             precast_tensor* outputs, size_t output_count) {
    return guarded([&]() -> precast_status {
        auto status = check_entry(model, number, model);
        if (!status && ((input_count && !inputs) || (output_count && !outputs)))
            status = fail(PRECAST_INVALID_ARGUMENT, "a null pointer was given");
        call prepared;
        if (!status) status = prepare(*model, number, inputs, input_count, prepared);
        if (status) return status;
        const entry& entry = entries[number];
        if (output_count != entry.output_count)
            return fail(PRECAST_MISMATCH, "entry '%s' gives %zu outputs, got %zu", entry.name, entry.output_count, output_count);
        const int64_t* layout = prepared.output_layouts;
        for (size_t each = 0; each < output_count; ++each) {
            const tensor_spec& spec = entry.outputs[each];
            const size_t bytes = static_cast<size_t>(spec.rank) * sizeof(int64_t);
            if (spec.rank && (!outputs[each].shape || !outputs[each].strides))
                return fail(PRECAST_INVALID_ARGUMENT, "output %zu has no room for shape and strides", each);
            if (spec.rank) std::memcpy(outputs[each].shape, layout, bytes);
            if (spec.rank) std::memcpy(outputs[each].strides, layout + spec.rank, bytes);
            outputs[each].rank = spec.rank;
            outputs[each].dtype = spec.dtype;
            outputs[each].device = {1, 0};
            outputs[each].byte_offset = 0;
            layout += 2 * spec.rank;
        }
        return PRECAST_OK;
    });
}

precast_status precast_run(precast_model* model, size_t number, const precast_tensor* inputs, size_t input_count,
                           const precast_tensor* outputs, size_t output_count) {
    return guarded([&]() -> precast_status {
        const auto status = check_entry(model, number, model);
        if (status) return status;
        if ((input_count && !inputs) || (output_count && !outputs))
            return fail(PRECAST_INVALID_ARGUMENT, "a null pointer was given");
        return run(*model, number, inputs, input_count, outputs, output_count);
    });
}

}  // extern "C"
