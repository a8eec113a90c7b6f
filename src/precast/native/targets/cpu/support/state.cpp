// A model's named tensors: their sources when it is opened, and later reads and writes.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "model.h"

namespace precast {

namespace {

// The header of a safetensors file: one JSON object of objects. Parses what is needed and skips the rest.
class header_reader {
public:
    header_reader(const char* start, const char* stop) : at(start), end(stop) {}

    // Calls `found` with the name and the offsets of each tensor; returns false if the text is malformed.
    template <class Found>
    bool read(Found found) {
        return members([&](const std::string& name) {
            int64_t offsets[2] = {-1, -1};
            const bool is_read = members([&](const std::string& key) {
                if (key != "data_offsets") return skip(0);
                return take('[') && number(offsets[0]) && take(',') && number(offsets[1]) && take(']');
            });
            if (!is_read) return false;
            if (name == "__metadata__") return true;
            return offsets[0] >= 0 && offsets[1] >= offsets[0] && found(name, offsets[0], offsets[1]);
        });
    }

private:
    static constexpr int max_depth = 16;
    const char* at;
    const char* const end;

    void skip_spaces() {
        while (at < end && (*at == ' ' || *at == '\n' || *at == '\t' || *at == '\r')) ++at;
    }
    bool is_next(char wanted) {
        skip_spaces();
        return at < end && *at == wanted;
    }
    bool take(char wanted) { return is_next(wanted) && ++at; }

    template <class Member>
    bool members(Member member) {
        if (!take('{')) return false;
        if (take('}')) return true;
        do {
            std::string key;
            if (!text(key) || !take(':') || !member(key)) return false;
        } while (take(','));
        return take('}');
    }

    bool text(std::string& result) {
        if (!take('"')) return false;
        while (at < end && *at != '"') {
            if (*at == '\\') {
                // Names that Precast writes contain no other escapes.
                if (++at == end || (*at != '"' && *at != '\\' && *at != '/')) return false;
            }
            result.push_back(*at++);
        }
        return take('"');
    }

    bool number(int64_t& result) {
        skip_spaces();
        result = 0;
        const char* const start = at;
        for (; at < end && *at >= '0' && *at <= '9'; ++at) {
            if (result > (int64_t{1} << 56)) return false;
            result = result * 10 + (*at - '0');
        }
        return at > start;
    }

    bool skip(int depth) {
        if (depth > max_depth) return false;
        std::string ignored;
        if (is_next('"')) return text(ignored);
        if (is_next('{')) return members([&](const std::string&) { return skip(depth + 1); });
        if (take('[')) {
            if (take(']')) return true;
            do {
                if (!skip(depth + 1)) return false;
            } while (take(','));
            return take(']');
        }
        const char* const start = at;
        while (at < end && *at != ',' && *at != ']' && *at != '}' && *at != ' ') ++at;
        return at > start;
    }
};

}  // namespace

stored_weights::~stored_weights() {
    if (mapped) munmap(mapped, mapped_size);
}

precast_status stored_weights::read(const unsigned char* data, size_t size) {
    uint64_t header = 0;
    if (size >= sizeof header) std::memcpy(&header, data, sizeof header);
    if (size < sizeof header || header > size - sizeof header)
        return fail(PRECAST_MISMATCH, "the weights have a wrong header");
    const char* const text = reinterpret_cast<const char*>(data) + sizeof header;
    body = text + header;
    const auto available = static_cast<int64_t>(size - sizeof header - header);
    const bool is_read = header_reader(text, body).read([&](const std::string& name, int64_t start, int64_t stop) {
        if (stop > available) return false;
        records.push_back({name, static_cast<size_t>(start), static_cast<size_t>(stop)});
        return true;
    });
    if (!is_read) return fail(PRECAST_MISMATCH, "the weights have a wrong header");
    std::sort(records.begin(), records.end(), [](const record& a, const record& b) { return a.name < b.name; });
    return PRECAST_OK;
}

precast_status stored_weights::map(const char* path) {
    const int file = ::open(path, O_RDONLY | O_CLOEXEC);
    struct stat facts {};
    if (file < 0 || fstat(file, &facts) != 0 || facts.st_size <= 0) {
        const int reason = errno;
        if (file >= 0) ::close(file);
        return fail(PRECAST_INVALID_ARGUMENT, "the weights '%s' cannot be read: %s", path, std::strerror(reason));
    }
    void* const found = mmap(nullptr, static_cast<size_t>(facts.st_size), PROT_READ, MAP_PRIVATE, file, 0);
    ::close(file);
    if (found == MAP_FAILED) return fail(PRECAST_OUT_OF_MEMORY, "the weights '%s' cannot be mapped", path);
    mapped = found;
    mapped_size = static_cast<size_t>(facts.st_size);
    return read(static_cast<const unsigned char*>(mapped), mapped_size);
}

const char* stored_weights::find(const char* name, size_t* size) const {
    const auto found = std::lower_bound(records.begin(), records.end(), name,
                                        [](const record& record, const char* wanted) { return record.name < wanted; });
    if (found == records.end() || found->name != name) return nullptr;
    *size = found->stop - found->start;
    return body + found->start;
}

namespace {

precast_status own_memory(state& state) {
    if (!state.own) state.own = allocate(state.size());
    return state.own ? PRECAST_OK : fail(PRECAST_OUT_OF_MEMORY, "no memory for the state '%s'", state.spec->name);
}

// Use the tensor in place, or copy it if calls update it, or if its layout differs from the program's.
precast_status bind(state& state, const precast_tensor& source) {
    const state_spec& spec = *state.spec;
    auto status = check_kind("weight", spec.name, spec.dtype, spec.rank, source);
    if (!status) status = check_shape("weight", spec.name, source, spec.shape);
    if (status) return status;
    if (!spec.is_updated && is_aligned(source) && has_strides(source, spec.shape, spec.strides)) {
        state.data = static_cast<char*>(start_of(source));
        return PRECAST_OK;
    }
    return write_state(state, source);
}

precast_status bind_stored(state& state, const char* data, size_t size) {
    const state_spec& spec = *state.spec;
    const int64_t last = spec.stored_offset + extent_of(spec.rank, spec.shape, spec.stored_strides);
    if (static_cast<uint64_t>(last * state.item_size()) > size)
        return fail(PRECAST_MISMATCH, "the stored weight '%s' is too small for '%s'", spec.storage, spec.name);
    precast_tensor source{};
    source.data = const_cast<char*>(data) + spec.stored_offset * state.item_size();
    source.device = {1, 0};
    source.rank = spec.rank;
    source.dtype = spec.dtype;
    source.shape = const_cast<int64_t*>(spec.shape);
    source.strides = const_cast<int64_t*>(spec.stored_strides);
    return bind(state, source);
}

const precast_tensor* find_given(const precast_open_options& options, const char* name) {
    for (size_t each = 0; each < options.weight_count; ++each)
        if (options.weights[each].name && std::strcmp(options.weights[each].name, name) == 0)
            return &options.weights[each].tensor;
    return nullptr;
}

}  // namespace

precast_status open_state(precast_model& model) {
    const auto& options = model.options;
    if (options.weight_count && !options.weights) return fail(PRECAST_INVALID_ARGUMENT, "a null pointer was given");
    precast_status status = PRECAST_OK;
    if (options.weights_path) status = model.stored.map(options.weights_path);
    else if (embedded.weights_size) status = model.stored.read(embedded.weights, embedded.weights_size);
    model.states.resize(state_count);
    for (size_t each = 0; each < state_count && !status; ++each) {
        state& state = model.states[each];
        state.spec = &states[each];
        size_t size = 0;
        const char* stored = state.spec->storage ? model.stored.find(state.spec->storage, &size) : nullptr;
        if (const auto* given = find_given(options, state.spec->name)) status = bind(state, *given);
        else if (stored) status = bind_stored(state, stored, size);
        else status = fail(PRECAST_MISMATCH, "the model needs the weight '%s'", state.spec->name);
    }
    return status;
}

precast_status find_state(precast_model& model, const char* name, state** found) {
    for (auto& each : model.states) {
        if (std::strcmp(each.spec->name, name) == 0) {
            *found = &each;
            return PRECAST_OK;
        }
    }
    return fail(PRECAST_INVALID_ARGUMENT, "the model has no state '%s'", name);
}

precast_status read_state(const state& state, const precast_tensor& target) {
    const state_spec& spec = *state.spec;
    auto status = check_kind("state", spec.name, spec.dtype, spec.rank, target);
    if (!status) status = check_shape("state", spec.name, target, spec.shape);
    if (status) return status;
    int64_t row_major[PRECAST_MAX_RANK];
    copy_elements(spec.rank, spec.shape, state.data, spec.strides, static_cast<char*>(start_of(target)),
                  strides_of(target, row_major), state.item_size());
    return PRECAST_OK;
}

precast_status write_state(state& state, const precast_tensor& source) {
    const state_spec& spec = *state.spec;
    auto status = check_kind("state", spec.name, spec.dtype, spec.rank, source);
    if (!status) status = check_shape("state", spec.name, source, spec.shape);
    if (!status) status = own_memory(state);
    if (status) return status;
    int64_t row_major[PRECAST_MAX_RANK];
    copy_elements(spec.rank, spec.shape, static_cast<const char*>(start_of(source)), strides_of(source, row_major),
                  state.own.get(), spec.strides, state.item_size());
    state.data = state.own.get();
    return PRECAST_OK;
}

}  // namespace precast
