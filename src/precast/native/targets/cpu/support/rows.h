// Shared by routines that work row by row: iterating over rows of any layout, and dispatch by element type.
#pragma once

#include <vector>

#include "precast_host.h"
#include "precast_kernels.h"

namespace precast {

// The lines of a tensor along one dimension; a zero-dim tensor is one line of one element.
struct rows {
    const strided& tensor;
    int dim;

    int64_t length() const { return tensor.rank ? tensor.sizes[dim] : 1; }
    int64_t step() const { return tensor.rank ? tensor.strides[dim] : 1; }
    int64_t count() const {
        int64_t total = 1;
        for (int each = 0; each < tensor.rank; ++each) total *= each == dim ? 1 : tensor.sizes[each];
        return total;
    }
    int64_t start(int64_t number) const {
        int64_t offset = 0;
        for (int each = tensor.rank - 1; each >= 0; --each) {
            if (each == dim) continue;
            offset += number % tensor.sizes[each] * tensor.strides[each];
            number /= tensor.sizes[each];
        }
        return offset;
    }
    template <class T>
    T* line(int64_t number) const {
        return static_cast<T*>(tensor.data) + start(number);
    }
};

template <class T>
struct type_tag {
    using type = T;
};

// Calls `body` with the tag of the element type.
template <class Body>
int32_t by_type(precast_dtype dtype, Body body) {
    switch (dtype.code * 256 + dtype.bits) {
        case 2 * 256 + 64: return body(type_tag<double>());
        case 2 * 256 + 32: return body(type_tag<float>());
        case 2 * 256 + 16: return body(type_tag<float16>());
        case 4 * 256 + 16: return body(type_tag<bfloat16>());
        case 64: return body(type_tag<int64_t>());
        case 32: return body(type_tag<int32_t>());
        case 16: return body(type_tag<int16_t>());
        case 8: return body(type_tag<int8_t>());
        case 256 + 8: case 6 * 256 + 8: return body(type_tag<uint8_t>());
    }
    return fail(PRECAST_FAILED, "no routine for dtype code %d with %d bits", dtype.code, dtype.bits);
}

// 16-bit floats are computed in single precision.
template <class T>
using wide = std::conditional_t<std::is_same_v<T, float16> || std::is_same_v<T, bfloat16>, float, T>;

}  // namespace precast
