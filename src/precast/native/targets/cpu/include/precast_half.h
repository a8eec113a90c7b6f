// Rounding to float16 with the processor's own conversions. GCC does not vectorize these, but it does call functions that are
// declared with vector variants, by their names in the vector ABI; here they are, for one element and for registers of each width.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__F16C__) && defined(__AVX2__) && !defined(__clang__)
#define PRECAST_HAS_HALF_CONVERSIONS

extern "C" {
__attribute__((__simd__("notinbranch"), const, visibility("hidden"))) uint32_t precast_narrowed(float value) noexcept;
__attribute__((__simd__("notinbranch"), const, visibility("hidden"))) float precast_rounded(float value) noexcept;
}

namespace precast::conversions {

template <class T, int count>
struct vector_of {
    typedef T type __attribute__((vector_size(count * sizeof(T))));
};
template <int count>
using floats = typename vector_of<float, count>::type;
template <int count>
using words = typename vector_of<uint32_t, count>::type;
// The instructions work on registers of at least 16 bytes.
template <int count>
using halves = typename vector_of<int16_t, (count < 8 ? 8 : count)>::type;

template <int count>
inline words<count> unpacked(halves<count> bits) {
    typename vector_of<uint16_t, count>::type narrow;
    std::memcpy(&narrow, &bits, sizeof(narrow));
    return __builtin_convertvector(narrow, words<count>);
}

#define PRECAST_DEFINED(type, name, label, parameter)                   \
    __attribute__((used)) static type name(parameter) __asm__(label); \
    static type name(parameter)
#define PRECAST_NARROWED(count, isa, narrow)                                                                        \
    PRECAST_DEFINED(words<count>, narrowed_##isa, "_ZGV" #isa "v_precast_narrowed", floats<count> values) {         \
        return unpacked<count>(narrow(values));                                                                     \
    }
#define PRECAST_ROUNDED(count, isa, widen, narrow)                                                                  \
    PRECAST_DEFINED(floats<count>, rounded_##isa, "_ZGV" #isa "v_precast_rounded", floats<count> values) {          \
        return widen(narrow(values));                                                                               \
    }
#define PRECAST_NARROW_4(x) __builtin_ia32_vcvtps2ph(x, 4)
#define PRECAST_NARROW_8(x) __builtin_ia32_vcvtps2ph256(x, 4)
#define PRECAST_WIDEN_16(x) __builtin_ia32_vcvtph2ps512_mask(x, floats<16>{}, -1, 4)
#define PRECAST_NARROW_16(x) __builtin_ia32_vcvtps2ph512_mask(x, 4, halves<16>{}, -1)

// Where only floats have wide registers, the integer variant has four lanes.
PRECAST_NARROWED(4, bN4, PRECAST_NARROW_4)
PRECAST_NARROWED(4, cN4, PRECAST_NARROW_4)
PRECAST_NARROWED(8, dN8, PRECAST_NARROW_8)
PRECAST_ROUNDED(4, bN4, __builtin_ia32_vcvtph2ps, PRECAST_NARROW_4)
PRECAST_ROUNDED(8, cN8, __builtin_ia32_vcvtph2ps256, PRECAST_NARROW_8)
PRECAST_ROUNDED(8, dN8, __builtin_ia32_vcvtph2ps256, PRECAST_NARROW_8)
#if defined(__AVX512F__)
PRECAST_NARROWED(16, eN16, PRECAST_NARROW_16)
PRECAST_ROUNDED(16, eN16, PRECAST_WIDEN_16, PRECAST_NARROW_16)
#endif
PRECAST_DEFINED(uint32_t, narrowed_1, "precast_narrowed", float value) {
    return static_cast<uint16_t>(PRECAST_NARROW_4((floats<4>{value}))[0]);
}
PRECAST_DEFINED(float, rounded_1, "precast_rounded", float value) {
    return __builtin_ia32_vcvtph2ps(PRECAST_NARROW_4((floats<4>{value})))[0];
}

}  // namespace precast::conversions

#undef PRECAST_DEFINED
#undef PRECAST_NARROWED
#undef PRECAST_ROUNDED
#undef PRECAST_NARROW_4
#undef PRECAST_NARROW_8
#undef PRECAST_WIDEN_16
#undef PRECAST_NARROW_16
#endif
