// Whether arithmetic met a NaN, told by the processor without looking at a number.
//
// The larger of a NaN and 0, as oneDNN's relu and clip take it, is 0, where it should stay NaN. Processors note in each thread that an
// operand was none, so this can be left to oneDNN and done otherwise in the rare case that there was one.
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
    // From here on, in all threads that routines use, if there is something to watch.
    explicit nan_watch(bool is_needed) : is_needed(is_needed), before(is_needed ? _mm_getcsr() & invalid : 0) {
        if (!is_needed) return;
#pragma omp parallel if (omp_get_max_threads() > 1)
        _mm_setcsr(_mm_getcsr() & ~invalid);
    }
    ~nan_watch() {
        if (before) _mm_setcsr(_mm_getcsr() | before);
    }
    nan_watch(const nan_watch&) = delete;
    nan_watch& operator=(const nan_watch&) = delete;

    bool saw_one() const {
        bool found = false;
        if (!is_needed) return found;
#pragma omp parallel reduction(|| : found) if (omp_get_max_threads() > 1)
        found = (_mm_getcsr() & invalid) != 0;
        return found;
    }

private:
    static constexpr unsigned invalid = 1;  // among the flags of MXCSR: an operand that is no number, or no number for a result
    const bool is_needed;
    const unsigned before;
};
#else
constexpr bool can_watch = false;

class nan_watch {
public:
    explicit nan_watch(bool) {}
    bool saw_one() const { return false; }
};
#endif

// Whether oneDNN would lose NaN in one of these steps.
inline bool loses_nan(const epilogue& epilogue) {
    for (int32_t each = 0; each < epilogue.size; ++each)
        if (epilogue.steps[each].kind == finish_kind::relu || epilogue.steps[each].kind == finish_kind::relu6) return true;
    return false;
}

}  // namespace precast
