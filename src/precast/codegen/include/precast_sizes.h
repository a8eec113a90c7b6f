// Whole numbers computed from a call's sizes: exact, or known not to be.
#pragma once

#include <cstdint>

#include "precast_kernels.h"

namespace precast {

// Once a number does not fit into 64 bits, or has no value, it and all that is computed from it are not `known`.
struct exact {
    int64_t value;
    bool known;

    exact(int64_t value, bool known = true) : value(value), known(known) {}
};

inline exact operator+(exact a, exact b) {
    int64_t sum;
    const bool fits = !__builtin_add_overflow(a.value, b.value, &sum);
    return {sum, fits && a.known && b.known};
}
inline exact operator-(exact a, exact b) {
    int64_t difference;
    const bool fits = !__builtin_sub_overflow(a.value, b.value, &difference);
    return {difference, fits && a.known && b.known};
}
inline exact operator*(exact a, exact b) {
    int64_t product;
    const bool fits = !__builtin_mul_overflow(a.value, b.value, &product);
    return {product, fits && a.known && b.known};
}
inline exact operator-(exact a) { return exact(0) - a; }
inline bool is_divisible(exact a, exact b) { return a.known && b.known && b.value > 0; }
inline exact operator/(exact a, exact b) { return is_divisible(a, b) ? exact(a.value / b.value) : exact(0, false); }
inline exact operator%(exact a, exact b) { return is_divisible(a, b) ? exact(a.value % b.value) : exact(0, false); }
inline exact floor_divide(exact a, exact b) {
    return is_divisible(a, b) ? exact(floor_divide(a.value, b.value)) : exact(0, false);
}
inline exact floor_remainder(exact a, exact b) {
    return is_divisible(a, b) ? exact(floor_remainder(a.value, b.value)) : exact(0, false);
}
template <>
inline exact maximum<exact>(exact a, exact b) {
    return {a.value >= b.value ? a.value : b.value, a.known && b.known};
}
template <>
inline exact minimum<exact>(exact a, exact b) {
    return {a.value <= b.value ? a.value : b.value, a.known && b.known};
}

// The number; `known` turns false where it is not.
inline int64_t number(exact computed, bool& known) {
    known &= computed.known;
    return computed.value;
}

}  // namespace precast
