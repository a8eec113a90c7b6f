// One call's scratch memory and library handles; a model keeps those that are not in use.
#pragma once

#include <cstdint>
#include <memory>

#include "tensors.h"

namespace precast {

// Whatever a routine keeps from call to call, e.g. prepared matrix products.
struct routine_cache {
    virtual ~routine_cache() = default;
};

class context {
public:
    explicit context(const precast_open_options& options) : fallback(options.fallback), fallback_data(options.fallback_data) {}
    context(const context&) = delete;
    context& operator=(const context&) = delete;

    // At least `size` bytes, aligned for vectors; null when there is no memory.
    char* arena(int64_t size);

    std::unique_ptr<routine_cache> matmuls, convolutions;
    const precast_fallback fallback;
    void* const fallback_data;

private:
    memory scratch;
    int64_t capacity = 0;
};

}  // namespace precast
