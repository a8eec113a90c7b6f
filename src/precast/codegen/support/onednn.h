// What routines that call oneDNN share: the engine of a context, and element types.
#pragma once

#include <dnnl.h>

#include "precast_host.h"

namespace precast {

struct engine {
    dnnl_engine_t handle = nullptr;
    dnnl_stream_t stream = nullptr;
    engine() {
        if (dnnl_engine_create(&handle, dnnl_cpu, 0) != dnnl_success) handle = nullptr;
        else if (dnnl_stream_create(&stream, handle, dnnl_stream_default_flags) != dnnl_success) stream = nullptr;
    }
    ~engine() {
        if (stream) dnnl_stream_destroy(stream);
        if (handle) dnnl_engine_destroy(handle);
    }
    engine(const engine&) = delete;
    engine& operator=(const engine&) = delete;
};

inline dnnl_data_type_t type_of(precast_dtype dtype) {
    if (dtype.code == 2 && dtype.bits == 32) return dnnl_f32;
    if (dtype.code == 2 && dtype.bits == 16) return dnnl_f16;
    if (dtype.code == 4 && dtype.bits == 16) return dnnl_bf16;
    return dnnl_data_type_undef;
}

}  // namespace precast
