// Detects whether arithmetic produced a NaN or overflowed, from the processor's exception flags.
//
// oneDNN's relu and clip take the larger of NaN and 0, which is 0, where NaN should propagate; its gelu of infinity is NaN, and
// that of numbers above half the maximum is infinity. Processors record such operands in each thread, so oneDNN is used anyway,
// and the result is recomputed differently in the rare case that there was one.
#pragma once

#include <omp.h>

#include "precast_host.h"

#if defined(__SSE__)
#include <xmmintrin.h>
#endif

namespace precast {

#if defined(__SSE__)
constexpr bool can_watch = true;

// In all threads that routines use, clear some flags of MXCSR.
inline void clear_flags(unsigned flags) {
#pragma omp parallel if (omp_get_max_threads() > 1)
    _mm_setcsr(_mm_getcsr() & ~flags);
}
inline bool has_flags(unsigned flags) {
    bool found = false;
#pragma omp parallel reduction(|| : found) if (omp_get_max_threads() > 1)
    found = (_mm_getcsr() & flags) != 0;
    return found;
}
inline unsigned own_flags() { return _mm_getcsr(); }
inline void set_own_flags(unsigned flags) { _mm_setcsr(_mm_getcsr() | flags); }
#else
constexpr bool can_watch = false;

inline void clear_flags(unsigned) {}
inline bool has_flags(unsigned) { return false; }
inline unsigned own_flags() { return 0; }
inline void set_own_flags(unsigned) {}
#endif

// The watch over a call. Querying all threads takes as long as a small step: a call that can be repeated queries them once, at its
// end, and if a flag was set the call is repeated, and later ones run, with a watch over each step.
class call_watch {
public:
    // From here on, watch these flags: for the step that needs it, or for the call.
    bool begin_step(unsigned flags) {
        if (goes_by_step) {
            clear_flags(flags);
            return true;
        }
        if (!(watched & flags)) clear_flags(flags);
        watched |= flags;
        return false;
    }

    template <class Run>
    int32_t run(bool can_be_repeated, Run run) {
        const unsigned before = own_flags();
        goes_by_step = has_seen_one || !can_be_repeated;
        watched = 0;
        int32_t status = run();
        if (!status && watched && has_flags(watched)) {
            has_seen_one = goes_by_step = true;
            status = run();
        }
        set_own_flags(before & all_flags);
        return status;
    }

private:
    static constexpr unsigned all_flags = 0x3f;
    bool goes_by_step = true, has_seen_one = false;
    unsigned watched = 0;
};

// The watch over a step.
class nan_watch {
public:
    nan_watch(call_watch& call, unsigned flags) : flags(flags && call.begin_step(flags) ? flags : 0) {}
    bool saw_one() const { return flags && has_flags(flags); }

private:
    const unsigned flags;
};

// The flags that the processor sets if oneDNN may be wrong in one of these operations.
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
