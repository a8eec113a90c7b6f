// The C interface of precast.h over the generated tables.
#include <omp.h>
#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <vector>

#include "model.h"

namespace precast {

namespace {
thread_local char last_error[1024] = "";
}  // namespace

precast_status fail(precast_status status, const char* format, ...) {
    va_list arguments;
    va_start(arguments, format);
    std::vsnprintf(last_error, sizeof last_error, format, arguments);
    va_end(arguments);
    return status;
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

namespace {

constexpr size_t place_size = 256;
// OpenMP ends the process if the system does not provide the requested threads.
constexpr int32_t most_threads = 4096;

// The tensor that an error is about.
struct place {
    char text[place_size];
    place(const entry& entry, const char* what) { std::snprintf(text, sizeof text, "entry '%.200s', %s", entry.name, what); }
};

// An input in the layout that the program was compiled for.
precast_status arranged(const precast_tensor& tensor, const int64_t* shape, const int64_t* strides,
                        std::vector<memory>& copies, void** data) {
    *data = start_of(tensor);
    if (is_aligned(tensor) && has_strides(tensor, shape, strides)) return PRECAST_OK;
    const int64_t item_size = tensor.dtype.bits / 8;
    int64_t row_major[PRECAST_MAX_RANK];
    copies.push_back(allocate(extent_of(tensor.rank, shape, strides) * item_size));
    if (!copies.back()) return fail(PRECAST_OUT_OF_MEMORY, "no memory to arrange an input");
    copy_elements(tensor.rank, shape, static_cast<const char*>(*data), strides_of(tensor, row_major), copies.back().get(),
                  strides, item_size);
    *data = copies.back().get();
    return PRECAST_OK;
}

// Copies what the program wrote into a rearranged copy of an input back to the caller's memory.
void put_back(const precast_tensor& tensor, const int64_t* shape, const int64_t* strides, const void* data) {
    if (data == start_of(tensor)) return;
    int64_t row_major[PRECAST_MAX_RANK];
    copy_elements(tensor.rank, shape, static_cast<const char*>(data), strides, static_cast<char*>(start_of(tensor)),
                  strides_of(tensor, row_major), tensor.dtype.bits / 8);
}

size_t count_own(const tensor_spec* specs, size_t count) {
    size_t own = 0;
    for (size_t each = 0; each < count; ++each) own += specs[each].state < 0;
    return own;
}

bool updates_state(const entry& entry) {
    const auto is_changed = [](const tensor_spec& input) { return input.state >= 0 && input.is_written; };
    return count_own(entry.outputs, entry.output_count) != entry.output_count ||
           std::any_of(entry.inputs, entry.inputs + entry.input_count, is_changed);
}

// Whether a call of it can be repeated.
bool only_reads(const entry& entry) {
    return !updates_state(entry) && std::none_of(entry.inputs, entry.inputs + entry.input_count, [](const auto& each) { return each.is_written; });
}

// One call: the caller's inputs in the program's order, checked, with the sizes and layouts computed from them. Entries for
// weights are null: they already have the program's layout.
struct call {
    std::vector<const precast_tensor*> inputs;
    std::vector<int64_t> sizes, layouts;
    const int64_t* output_layouts = nullptr;
    int64_t arena_size = 0;
};

precast_status read_size(const entry& entry, const size_source& source, const precast_tensor& tensor, int64_t* size) {
    const char* const name = entry.inputs[source.input].name;
    if (source.dimension < 0 && !tensor.data)
        return fail(PRECAST_INVALID_ARGUMENT, "entry '%s', input '%s' has no data", entry.name, name);
    int64_t number, multiple;
    // It need not be aligned.
    if (source.dimension < 0) std::memcpy(&number, start_of(tensor), sizeof number);
    else number = tensor.shape[source.dimension];
    if (__builtin_sub_overflow(number, source.offset, &multiple)) multiple = number = -1;
    *size = multiple / source.factor;
    if (number < 0) return fail(PRECAST_MISMATCH, "entry '%s', input '%s': a size is negative", entry.name, name);
    if (*size * source.factor != multiple || *size < source.lower || *size > source.upper)
        return fail(PRECAST_MISMATCH, "entry '%s', input '%s': the size %lld is not one that the entry was compiled for",
                    entry.name, name, static_cast<long long>(number));
    return PRECAST_OK;
}

precast_status too_large(const entry& entry) {
    return fail(PRECAST_MISMATCH, "entry '%s': with these sizes, a tensor would be larger than any memory", entry.name);
}

bool is_possible(const tensor_spec& spec, const int64_t* layout) {
    return precast::is_possible(spec.rank, layout, layout + spec.rank, spec.dtype.bits / 8);
}

precast_status prepare(size_t number, const precast_tensor* inputs, size_t input_count, call& prepared) {
    const entry& entry = entries[number];
    const place place(entry, "input");
    const size_t expected = count_own(entry.inputs, entry.input_count);
    if (input_count != expected)
        return fail(PRECAST_MISMATCH, "entry '%s' takes %zu inputs, got %zu", entry.name, expected, input_count);
    size_t next_input = 0, layout_size = 0;
    for (size_t position = 0; position < entry.input_count; ++position) {
        const tensor_spec& spec = entry.inputs[position];
        layout_size += 2 * static_cast<size_t>(spec.rank);
        prepared.inputs.push_back(spec.state < 0 ? &inputs[next_input++] : nullptr);
        if (spec.state >= 0) continue;
        const auto status = check_kind(place.text, spec.name, spec.dtype, spec.rank, *prepared.inputs.back());
        if (status) return status;
    }
    prepared.sizes.resize(entry.size_count + entry.found_count + 1);
    for (size_t each = 0; each < entry.size_count; ++each) {
        const auto& source = entry.sizes[each];
        const auto status = read_size(entry, source, *prepared.inputs[source.input], &prepared.sizes[each]);
        if (status) return status;
    }
    if (const char* const condition = entry.broken_condition(prepared.sizes.data()))
        return fail(PRECAST_MISMATCH, "entry '%s': %s does not hold for these sizes", entry.name, condition);
    const size_t output_start = layout_size;
    for (size_t each = 0; each < entry.output_count; ++each) layout_size += 2 * static_cast<size_t>(entry.outputs[each].rank);
    prepared.layouts.resize(layout_size + 1);
    if (!entry.layouts(prepared.sizes.data(), prepared.layouts.data())) return too_large(entry);
    prepared.output_layouts = prepared.layouts.data() + output_start;
    const int64_t* layout = prepared.layouts.data();
    for (size_t position = 0; position < entry.input_count; ++position) {
        const tensor_spec& spec = entry.inputs[position];
        const auto status = spec.state < 0 ? check_shape(place.text, spec.name, *prepared.inputs[position], layout) : PRECAST_OK;
        if (status) return status;
        if (spec.state < 0 && !is_possible(spec, layout)) return too_large(entry);
        layout += 2 * spec.rank;
    }
    for (size_t each = 0; each < entry.output_count; ++each) {
        if (!is_possible(entry.outputs[each], layout)) return too_large(entry);
        layout += 2 * entry.outputs[each].rank;
    }
    prepared.arena_size = entry.arena_size(prepared.sizes.data());
    return prepared.arena_size < 0 ? too_large(entry) : PRECAST_OK;
}

precast_status check_output_count(const entry& entry, size_t output_count) {
    const size_t expected = count_own(entry.outputs, entry.output_count);
    if (output_count == expected) return PRECAST_OK;
    return fail(PRECAST_MISMATCH, "entry '%s' gives %zu outputs, got %zu", entry.name, expected, output_count);
}

// Where each output is written: the caller's memory, or spare memory for updates of the state.
precast_status place_outputs(precast_model& model, const entry& entry, const precast_tensor* outputs, size_t output_count,
                             const int64_t* layout, std::vector<void*>& data) {
    const place place(entry, "output");
    auto status = check_output_count(entry, output_count);
    for (size_t each = 0, next = 0; each < entry.output_count && !status; ++each) {
        const tensor_spec& spec = entry.outputs[each];
        const int64_t* const strides = layout + spec.rank;
        if (spec.state < 0) {
            const precast_tensor& output = outputs[next++];
            status = check_kind(place.text, spec.name, spec.dtype, spec.rank, output);
            if (!status) status = check_shape(place.text, spec.name, output, layout);
            if (!status && !has_strides(output, layout, strides))
                status = fail(PRECAST_MISMATCH, "%s '%s' has other strides than precast_infer gives", place.text, spec.name);
            data.push_back(start_of(output));
        } else {
            state& state = model.states[spec.state];
            const int64_t size = std::max(state.size(), extent_of(spec.rank, layout, strides) * state.item_size());
            if (!state.spare || state.spare_size < size) state.spare = allocate(size), state.spare_size = size;
            if (!state.spare) status = fail(PRECAST_OUT_OF_MEMORY, "no memory for the state '%s'", spec.name);
            data.push_back(state.spare.get());
        }
        layout += 2 * spec.rank;
    }
    return status;
}

// After a successful call, its updates become the state.
void apply_updates(precast_model& model, const entry& entry, const int64_t* layout) {
    for (size_t each = 0; each < entry.output_count; ++each) {
        const tensor_spec& spec = entry.outputs[each];
        const int64_t* const strides = layout + spec.rank;
        if (spec.state >= 0) {
            state& state = model.states[spec.state];
            if (std::equal(strides, strides + spec.rank, state.spec->strides)) {
                std::swap(state.own, state.spare);
                state.spare_size = state.size();
                state.data = state.own.get();
            } else {
                copy_elements(spec.rank, layout, state.spare.get(), strides, state.own.get(), state.spec->strides,
                              state.item_size());
            }
        }
        layout += 2 * spec.rank;
    }
}

// OpenMP's threads do not survive a fork: the forking thread would wait for its team forever, so in the child it works alone.
// Threads that it starts have teams of their own.
std::atomic<bool> has_had_team{false};
thread_local bool has_lost_team = false;

void work_alone() {
    if (!has_had_team) return;
    has_lost_team = true;
    omp_set_num_threads(1);
}

const int is_told_of_forks = pthread_atfork(nullptr, nullptr, work_alone);

// While it lives, this thread's parallel regions have this many threads.
class thread_count {
public:
    explicit thread_count(int32_t wanted) : before(omp_get_max_threads()) {
        if (has_lost_team) wanted = 1;
        if (wanted > 1 || (wanted == 0 && before > 1)) has_had_team = true;
        if (wanted > 0 && wanted != before) omp_set_num_threads(wanted);
        else before = 0;
    }
    ~thread_count() {
        if (before) omp_set_num_threads(before);
    }
    thread_count(const thread_count&) = delete;
    thread_count& operator=(const thread_count&) = delete;

private:
    int before;
};

// Once data-dependent sizes are known: write the outputs' actual layouts, whose memory had room for more.
precast_status tell_layouts(const entry& entry, call& prepared, const precast_tensor* outputs) {
    std::vector<int64_t> layouts(prepared.layouts.size());
    if (!entry.found_layouts(prepared.sizes.data(), layouts.data())) return too_large(entry);
    const int64_t* layout = layouts.data();
    for (size_t each = 0, next = 0; each < entry.output_count; ++each) {
        const tensor_spec& spec = entry.outputs[each];
        if (spec.state < 0) {
            const precast_tensor& output = outputs[next++];
            std::copy_n(layout, spec.rank, output.shape);
            if (output.strides) std::copy_n(layout + spec.rank, spec.rank, output.strides);
        }
        layout += 2 * spec.rank;
    }
    return PRECAST_OK;
}

precast_status run_alone(precast_model& model, size_t number, call& prepared, const precast_tensor* outputs,
                         size_t output_count) {
    const entry& entry = entries[number];
    std::vector<void*> input_data(entry.input_count), output_data;
    std::vector<memory> copies;
    auto status = place_outputs(model, entry, outputs, output_count, prepared.output_layouts, output_data);
    const int64_t* layout = prepared.layouts.data();
    for (size_t position = 0; position < entry.input_count && !status; ++position) {
        const tensor_spec& spec = entry.inputs[position];
        if (spec.state >= 0) input_data[position] = model.states[spec.state].data;
        else status = arranged(*prepared.inputs[position], layout, layout + spec.rank, copies, &input_data[position]);
        layout += 2 * spec.rank;
    }
    if (status) return status;
    const thread_count threads(model.options.threads);
    auto context = model.take();
    char* arena = context->arena(prepared.arena_size);
    if (prepared.arena_size && !arena)
        status = fail(PRECAST_OUT_OF_MEMORY, "no %lld bytes of scratch memory", static_cast<long long>(prepared.arena_size));
    else status = context->watch.run(only_reads(entry), [&] {
        return entry.run({input_data.data(), output_data.data(), arena, prepared.sizes.data(), context.get(),
                          prepared.sizes.data() + entry.size_count});
    });
    model.give_back(std::move(context));
    if (!status && entry.found_count) status = tell_layouts(entry, prepared, outputs);
    if (status) return status;
    apply_updates(model, entry, prepared.output_layouts);
    layout = prepared.layouts.data();
    for (size_t position = 0; position < entry.input_count; ++position) {
        const tensor_spec& spec = entry.inputs[position];
        if (spec.is_written && spec.state < 0) put_back(*prepared.inputs[position], layout, layout + spec.rank, input_data[position]);
        layout += 2 * spec.rank;
    }
    return PRECAST_OK;
}

precast_status run(precast_model& model, size_t number, const precast_tensor* inputs, size_t input_count,
                   const precast_tensor* outputs, size_t output_count) {
    call prepared;
    const auto status = prepare(number, inputs, input_count, prepared);
    if (status) return status;
    if (updates_state(entries[number])) {
        const std::lock_guard<std::shared_mutex> lock(model.state_mutex);
        return run_alone(model, number, prepared, outputs, output_count);
    }
    const std::shared_lock<std::shared_mutex> lock(model.state_mutex);
    return run_alone(model, number, prepared, outputs, output_count);
}

precast_status open(const precast_open_options& options, precast_model& model) {
    if (options.threads < 0 || options.threads > most_threads)
        return fail(PRECAST_INVALID_ARGUMENT, "a call cannot use %d threads", options.threads);
    model.options = options;
    for (size_t number = 0; number < entry_count; ++number) {
        const entry& entry = entries[number];
        if (entry.fallback_count && !options.fallback)
            return fail(PRECAST_INVALID_ARGUMENT, "entry '%s' needs a fallback for %zu steps", entry.name, entry.fallback_count);
    }
    return open_state(model);
}

void describe(const tensor_spec& spec, const int64_t* layout, precast_tensor& tensor) {
    const size_t bytes = static_cast<size_t>(spec.rank) * sizeof(int64_t);
    if (spec.rank) std::memcpy(tensor.shape, layout, bytes);
    if (spec.rank) std::memcpy(tensor.strides, layout + spec.rank, bytes);
    tensor.rank = spec.rank;
    tensor.dtype = spec.dtype;
    tensor.device = {1, 0};
    tensor.byte_offset = 0;
}

precast_status infer(size_t number, const precast_tensor* inputs, size_t input_count, precast_tensor* outputs,
                     size_t output_count) {
    const entry& entry = entries[number];
    call prepared;
    auto status = prepare(number, inputs, input_count, prepared);
    if (!status) status = check_output_count(entry, output_count);
    if (status) return status;
    const int64_t* layout = prepared.output_layouts;
    for (size_t each = 0, next = 0; each < entry.output_count; ++each) {
        const tensor_spec& spec = entry.outputs[each];
        if (spec.state < 0) {
            precast_tensor& output = outputs[next++];
            if (spec.rank && (!output.shape || !output.strides))
                return fail(PRECAST_INVALID_ARGUMENT, "output %zu has no room for shape and strides", next - 1);
            describe(spec, layout, output);
        }
        layout += 2 * spec.rank;
    }
    return PRECAST_OK;
}

// Runs `body`; running out of memory is the only exception below.
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

precast_status precast_find_entry(const precast_model* model, const char* name, size_t* number) {
    if (!model || !name || !number) return fail(PRECAST_INVALID_ARGUMENT, "a null pointer was given");
    for (size_t each = 0; each < entry_count; ++each) {
        if (std::strcmp(entries[each].name, name) == 0) {
            *number = each;
            return PRECAST_OK;
        }
    }
    return fail(PRECAST_INVALID_ARGUMENT, "there is no entry '%s'", name);
}

precast_status precast_manifest_json(const char** json) {
    if (!json) return fail(PRECAST_INVALID_ARGUMENT, "a null pointer was given");
    *json = embedded.manifest;
    return PRECAST_OK;
}

precast_status precast_entry_json(const precast_model* model, size_t number, const char** json) {
    const auto status = check_entry(model, number, json);
    if (!status) *json = entries[number].json;
    return status;
}

precast_status precast_infer(precast_model* model, size_t number, const precast_tensor* inputs, size_t input_count,
                             precast_tensor* outputs, size_t output_count) {
    return guarded([&]() -> precast_status {
        const auto status = check_entry(model, number, model);
        if (status) return status;
        if ((input_count && !inputs) || (output_count && !outputs))
            return fail(PRECAST_INVALID_ARGUMENT, "a null pointer was given");
        return infer(number, inputs, input_count, outputs, output_count);
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

precast_status precast_state_count(const precast_model* model, size_t* count) {
    if (!model || !count) return fail(PRECAST_INVALID_ARGUMENT, "a null pointer was given");
    *count = state_count;
    return PRECAST_OK;
}

precast_status precast_state_name(const precast_model* model, size_t number, const char** name) {
    if (!model || !name) return fail(PRECAST_INVALID_ARGUMENT, "a null pointer was given");
    if (number >= state_count) return fail(PRECAST_INVALID_ARGUMENT, "there is no state %zu", number);
    *name = states[number].name;
    return PRECAST_OK;
}

precast_status precast_describe_state(const precast_model* model, const char* name, precast_tensor* tensor) {
    if (!model || !name || !tensor || !tensor->shape || !tensor->strides)
        return fail(PRECAST_INVALID_ARGUMENT, "a null pointer was given");
    state* found = nullptr;
    const auto status = find_state(*const_cast<precast_model*>(model), name, &found);
    if (status) return status;
    const state_spec& spec = *found->spec;
    std::copy_n(spec.shape, spec.rank, tensor->shape);
    std::copy_n(spec.strides, spec.rank, tensor->strides);
    tensor->rank = spec.rank;
    tensor->dtype = spec.dtype;
    tensor->device = {1, 0};
    tensor->byte_offset = 0;
    return PRECAST_OK;
}

precast_status precast_read_state(precast_model* model, const char* name, const precast_tensor* target) {
    return guarded([&]() -> precast_status {
        if (!model || !name || !target) return fail(PRECAST_INVALID_ARGUMENT, "a null pointer was given");
        state* found = nullptr;
        const auto status = find_state(*model, name, &found);
        const std::shared_lock<std::shared_mutex> lock(model->state_mutex);
        return status ? status : read_state(*found, *target);
    });
}

precast_status precast_write_state(precast_model* model, const char* name, const precast_tensor* source) {
    return guarded([&]() -> precast_status {
        if (!model || !name || !source) return fail(PRECAST_INVALID_ARGUMENT, "a null pointer was given");
        state* found = nullptr;
        const auto status = find_state(*model, name, &found);
        const std::lock_guard<std::shared_mutex> lock(model->state_mutex);
        if (status) return status;
        model->forget_packed();
        return write_state(*found, *source);
    });
}

}  // extern "C"
