// Shared by routines that call oneDNN: the engine of a context, element types, and owners of oneDNN's handles.
#pragma once

#include <dnnl.h>

#include <string_view>
#include <utility>

#include "precast_host.h"

namespace precast {

// Owns a handle of oneDNN's C interface.
template <class Handle, dnnl_status_t (*destroy)(Handle)>
class owned {
public:
    owned() = default;
    owned(owned&& other) noexcept : handle(std::exchange(other.handle, nullptr)) {}
    owned& operator=(owned&& other) noexcept {
        std::swap(handle, other.handle);
        return *this;
    }
    ~owned() {
        if (handle) destroy(handle);
    }
    Handle get() const { return handle; }
    explicit operator bool() const { return handle != nullptr; }
    // Where a function that creates a handle writes it, replacing the current one.
    Handle* fill() {
        if (handle) destroy(std::exchange(handle, nullptr));
        return &handle;
    }

private:
    Handle handle = nullptr;
};

using owned_engine = owned<dnnl_engine_t, dnnl_engine_destroy>;
using owned_stream = owned<dnnl_stream_t, dnnl_stream_destroy>;
using owned_layout = owned<dnnl_memory_desc_t, dnnl_memory_desc_destroy>;
using owned_memory = owned<dnnl_memory_t, dnnl_memory_destroy>;
using owned_plan = owned<dnnl_primitive_desc_t, dnnl_primitive_desc_destroy>;
using owned_primitive = owned<dnnl_primitive_t, dnnl_primitive_destroy>;
using owned_attributes = owned<dnnl_primitive_attr_t, dnnl_primitive_attr_destroy>;
using owned_post_ops = owned<dnnl_post_ops_t, dnnl_post_ops_destroy>;

struct engine {
    owned_engine handle;
    owned_stream stream;
    engine() {
        if (dnnl_engine_create(handle.fill(), dnnl_cpu, 0) == dnnl_success)
            dnnl_stream_create(stream.fill(), handle.get(), dnnl_stream_default_flags);
    }
};

inline dnnl_data_type_t type_of(precast_dtype dtype) {
    if (dtype.code == 2 && dtype.bits == 32) return dnnl_f32;
    if (dtype.code == 2 && dtype.bits == 16) return dnnl_f16;
    if (dtype.code == 4 && dtype.bits == 16) return dnnl_bf16;
    return dnnl_data_type_undef;
}

// For factors, which may be integers even if the result is not.
inline dnnl_data_type_t factor_type_of(precast_dtype dtype) { return dtype.code == 0 && dtype.bits == 8 ? dnnl_s8 : type_of(dtype); }

inline std::string_view implementation_of(const owned_plan& plan) {
    const char* name = "";
    dnnl_primitive_desc_query(plan.get(), dnnl_query_impl_info_str, 0, &name);
    return name;
}

// oneDNN's reference implementations are hundreds of times slower than its others, and slower than plain loops.
inline bool is_reference(const owned_plan& plan) { return implementation_of(plan).substr(0, 3) == "ref"; }

}  // namespace precast
