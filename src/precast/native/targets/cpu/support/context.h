// One call's scratch memory and library handles; a model pools those that are not in use.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "nan_watch.h"
#include "tensors.h"

namespace precast {

// State that a routine keeps from call to call, e.g. prepared GEMM primitives.
struct routine_cache {
    virtual ~routine_cache() = default;
};

// Weights packed into the layouts that routines prefer, once for all calls of a model: by address and layout.
class packed_weights {
public:
    // The weights of `key`, packed by `make` on first use. Null if there is no memory, or `make` returns false.
    template <class Make>
    char* find(const std::vector<int64_t>& key, int64_t bytes, Make make) {
        const std::lock_guard<std::mutex> lock(mutex);
        auto& place = known[key];
        if (place) return place.get();
        place = allocate(bytes);
        if (place && !make(place.get())) place.reset();
        return place.get();
    }
    void forget() { known.clear(); }

private:
    std::mutex mutex;
    std::map<std::vector<int64_t>, memory> known;
};

class context {
public:
    context(const precast_open_options& options, packed_weights& packed)
        : fallback(options.fallback), fallback_data(options.fallback_data), packed(packed) {}
    context(const context&) = delete;
    context& operator=(const context&) = delete;

    // At least `size` bytes each: for the program's temporaries, and for one routine's temporaries.
    char* arena(int64_t size) { return temporaries.at_least(size); }
    char* scratch(int64_t size) { return routine.at_least(size); }

    std::unique_ptr<routine_cache> matmuls, convolutions;
    const precast_fallback fallback;
    void* const fallback_data;
    packed_weights& packed;
    call_watch watch;
    // The constant that was last multiplied by, and the end from which it was read.
    const float* last_panels = nullptr;
    bool began_at_end = false;

private:
    struct growing {
        memory block;
        int64_t capacity = 0;
        char* at_least(int64_t size) {
            if (size > capacity) {
                block.reset();
                block = allocate(size);
                capacity = block ? size : 0;
            }
            return block.get();
        }
    };
    growing temporaries, routine;
};

}  // namespace precast
