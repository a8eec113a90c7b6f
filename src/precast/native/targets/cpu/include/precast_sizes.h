// Integers computed from a call's sizes: exact, or known not to be.
#pragma once

#include <cstdint>

#include "precast_kernels.h"

// Host code is compiled without inlining; these must be inlined.
#define PRECAST_SIZES __attribute__((always_inline)) inline

namespace precast {

// Once a number exceeds 64 bits, or is undefined, it and everything computed from it is not `known`.
struct exact {
    int64_t value;
    bool known;

    __attribute__((always_inline)) exact(int64_t value, bool known = true) : value(value), known(known) {}
};

PRECAST_SIZES exact operator+(exact a, exact b) {
    int64_t sum;
    const bool fits = !__builtin_add_overflow(a.value, b.value, &sum);
    return {sum, fits && a.known && b.known};
}
PRECAST_SIZES exact operator-(exact a, exact b) {
    int64_t difference;
    const bool fits = !__builtin_sub_overflow(a.value, b.value, &difference);
    return {difference, fits && a.known && b.known};
}
PRECAST_SIZES exact operator*(exact a, exact b) {
    int64_t product;
    const bool fits = !__builtin_mul_overflow(a.value, b.value, &product);
    return {product, fits && a.known && b.known};
}
PRECAST_SIZES exact operator-(exact a) { return exact(0) - a; }
PRECAST_SIZES bool is_divisible(exact a, exact b) { return a.known && b.known && b.value > 0; }
PRECAST_SIZES exact operator/(exact a, exact b) { return is_divisible(a, b) ? exact(a.value / b.value) : exact(0, false); }
PRECAST_SIZES exact operator%(exact a, exact b) { return is_divisible(a, b) ? exact(a.value % b.value) : exact(0, false); }
PRECAST_SIZES exact floor_divide(exact a, exact b) {
    return is_divisible(a, b) ? exact(floor_divide(a.value, b.value)) : exact(0, false);
}
PRECAST_SIZES exact floor_remainder(exact a, exact b) {
    return is_divisible(a, b) ? exact(floor_remainder(a.value, b.value)) : exact(0, false);
}
template <>
PRECAST_SIZES exact maximum<exact>(exact a, exact b) {
    return {a.value >= b.value ? a.value : b.value, a.known && b.known};
}
template <>
PRECAST_SIZES exact minimum<exact>(exact a, exact b) {
    return {a.value <= b.value ? a.value : b.value, a.known && b.known};
}

// The number; sets `known` to false if it is not.
PRECAST_SIZES int64_t number(exact computed, bool& known) {
    known &= computed.known;
    return computed.value;
}

}  // namespace precast

#undef PRECAST_SIZES
