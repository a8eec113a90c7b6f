// Whether arithmetic met a NaN, or a number too large, told by the processor without looking at a number.
//
// The larger of a NaN and 0, as oneDNN's relu and clip take it, is 0, where it should stay NaN; its gelu of infinity is NaN, and of
// numbers beyond half the largest infinity. Processors note in each thread that there was such an operand, so this can be left to oneDNN
// and done otherwise in the rare case that there was one.
#pragma once

#include <omp.h>

#include "precast_host.h"

#if defined(__SSE__)
#include <xmmintrin.h>
#endif

namespace precast {

#if defined(__SSE__)
constexpr bool can_watch = true;

class nan_watch {
public:
    // From here on, in all threads that routines use, for these among the flags of MXCSR.
    explicit nan_watch(unsigned flags) : flags(flags), before(flags ? _mm_getcsr() & flags : 0) {
        if (!flags) return;
#pragma omp parallel if (omp_get_max_threads() > 1)
        _mm_setcsr(_mm_getcsr() & ~flags);
    }
    ~nan_watch() {
        if (before) _mm_setcsr(_mm_getcsr() | before);
    }
    nan_watch(const nan_watch&) = delete;
    nan_watch& operator=(const nan_watch&) = delete;

    bool saw_one() const {
        bool found = false;
        if (!flags) return found;
#pragma omp parallel reduction(|| : found) if (omp_get_max_threads() > 1)
        found = (_mm_getcsr() & flags) != 0;
        return found;
    }

private:
    const unsigned flags, before;
};
#else
constexpr bool can_watch = false;

class nan_watch {
public:
    explicit nan_watch(unsigned) {}
    bool saw_one() const { return false; }
};
#endif

// What the processor notes if oneDNN is wrong in one of these steps.
inline unsigned flags_to_watch(const epilogue& epilogue) {
    constexpr unsigned invalid = 1, overflow = 8;  // no number, as an operand or for a result; a result too large
    unsigned flags = 0;
    for (int32_t each = 0; each < epilogue.size; ++each) {
        const auto kind = epilogue.steps[each].kind;
        if (kind == finish_kind::relu || kind == finish_kind::relu6) flags |= invalid;
        if (kind == finish_kind::gelu) flags |= invalid | overflow;
    }
    return flags;
}

}  // namespace precast
