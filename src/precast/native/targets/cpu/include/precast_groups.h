// How the threads of a parallel region share the iterations of many loops.
#pragma once

#include <omp.h>

#include <algorithm>
#include <cstdint>
#include <vector>

namespace precast {

struct range {
    int64_t start, stop;
};

// What falls to this thread when loops of `total` iterations together are put one after the other and cut into equal parts.
class share {
public:
    explicit share(int64_t total)
        : share(total, omp_get_thread_num(), omp_get_num_threads()) {}

    // Those of the next loop's iterations; none if its end is before its start.
    range next(int64_t count) {
        const int64_t before = position;
        position += count;
        return {cut(first - before, count), cut(last - before, count)};
    }

private:
    // Only at the end of a loop may less than a vector be left: whatever the threads are, an iteration is in a vector or not.
    static int64_t cut(int64_t place, int64_t count) {
        return place >= count ? count : std::max<int64_t>(place, 0) / 64 * 64;
    }

    share(int64_t total, int64_t thread, int64_t threads)
        : first(total * thread / threads), last(total * (thread + 1) / threads) {}

    int64_t first, last, position = 0;
};

// Into how many parts a reduction of this many iterations is cut: whatever the threads are, so that results do not depend on
// them. A prime, so that threads that take turns with the parts of many reductions take turns with their first parts too.
constexpr int64_t parts_at_most = 61;
inline int64_t parts_of(int64_t iterations) {
    return std::clamp<int64_t>(iterations / 4096, 1, parts_at_most);
}

}  // namespace precast
