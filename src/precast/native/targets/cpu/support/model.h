// An open model: its state, and the contexts that are not in use.
#pragma once

#include <mutex>
#include <shared_mutex>
#include <string>
#include <vector>

#include "context.h"
#include "tensors.h"

namespace precast {

// A named tensor of a model in the layout that the program declares. It is in the caller's memory, or in memory of its own.
struct state {
    const state_spec* spec = nullptr;
    char* data = nullptr;
    memory own, spare;
    int64_t spare_size = 0;

    int64_t item_size() const { return spec->dtype.bits / 8; }
    int64_t size() const { return extent_of(spec->rank, spec->shape, spec->strides) * item_size(); }
};

// Stored weights: in safetensors layout, inside this library or in a mapped file.
class stored_weights {
public:
    stored_weights() = default;
    ~stored_weights();
    stored_weights(const stored_weights&) = delete;
    stored_weights& operator=(const stored_weights&) = delete;

    precast_status read(const unsigned char* data, size_t size);
    precast_status map(const char* path);
    // The bytes of a stored tensor; null if there is none of that name.
    const char* find(const char* name, size_t* size) const;

private:
    struct record {
        std::string name;
        size_t start, stop;
    };
    void* mapped = nullptr;
    size_t mapped_size = 0;
    const char* body = nullptr;
    std::vector<record> records;
};

}  // namespace precast

struct precast_model {
    precast_open_options options{};
    precast::stored_weights stored;
    std::vector<precast::state> states;
    // Calls that only read state share the lock; calls that update it, and writes to it, are exclusive.
    std::shared_mutex state_mutex;
    precast::packed_weights packed;
    std::mutex mutex;
    std::vector<std::unique_ptr<precast::context>> idle;

    std::unique_ptr<precast::context> take() {
        const std::lock_guard<std::mutex> lock(mutex);
        if (idle.empty()) return std::make_unique<precast::context>(options, packed);
        auto found = std::move(idle.back());
        idle.pop_back();
        return found;
    }
    void give_back(std::unique_ptr<precast::context> used) {
        const std::lock_guard<std::mutex> lock(mutex);
        idle.push_back(std::move(used));
    }
    // After constants were written: discards everything derived from them, and all references to it. No call may be running.
    void forget_packed() {
        const std::lock_guard<std::mutex> lock(mutex);
        idle.clear();
        packed.forget();
    }
};

namespace precast {

// Finds every tensor of the state in the weights passed, the file named, or the weights inside this library.
precast_status open_state(precast_model& model);
precast_status find_state(precast_model& model, const char* name, state** found);
precast_status read_state(const state& state, const precast_tensor& target);
precast_status write_state(state& state, const precast_tensor& source);

}  // namespace precast
