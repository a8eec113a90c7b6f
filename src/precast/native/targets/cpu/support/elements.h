// Elements of any floating-point type up to 32 bits, in single precision.
#pragma once

#include "precast_host.h"
#include "precast_kernels.h"

namespace precast {

inline float element_of(const strided& operand, int64_t place) {
    if (operand.dtype.bits == 32) return static_cast<const float*>(operand.data)[place];
    if (operand.dtype.code == 4) return cast<float>(static_cast<const bfloat16*>(operand.data)[place]);
    return cast<float>(static_cast<const float16*>(operand.data)[place]);
}

inline void set_element(const strided& operand, int64_t place, float value) {
    if (operand.dtype.bits == 32) static_cast<float*>(operand.data)[place] = value;
    else if (operand.dtype.code == 4) static_cast<bfloat16*>(operand.data)[place] = cast<bfloat16>(value);
    else static_cast<float16*>(operand.data)[place] = cast<float16>(value);
}

}  // namespace precast
