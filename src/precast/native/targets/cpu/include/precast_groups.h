// Distributes the iterations of many loops to the threads of a parallel region.
#pragma once

#include <omp.h>

#include <algorithm>
#include <cstdint>
#include <vector>

namespace precast {

struct range {
    int64_t start, stop;
};

// This thread's share when loops of `total` iterations together are concatenated and split into equal parts.
class share {
public:
    explicit share(int64_t total)
        : share(total, omp_get_thread_num(), omp_get_num_threads()) {}

    // The part of the next loop's iterations in the share; none if its end is before its start.
    range next(int64_t count) {
        const int64_t before = position;
        position += count;
        return {cut(first - before, count), cut(last - before, count)};
    }

private:
    // Only at the end of a loop may there be a partial vector: whether an iteration is vectorized does not depend on the threads.
    static int64_t cut(int64_t place, int64_t count) {
        return place >= count ? count : std::max<int64_t>(place, 0) / 64 * 64;
    }

    share(int64_t total, int64_t thread, int64_t threads)
        : first(total * thread / threads), last(total * (thread + 1) / threads) {}

    int64_t first, last, position = 0;
};

// The number of parts of a reduction of this many iterations: independent of the threads, so that results are, too. A prime, so
// that the first parts of many reductions, too, are distributed evenly to threads.
constexpr int64_t parts_at_most = 61;
inline int64_t parts_of(int64_t iterations) {
    return std::clamp<int64_t>(iterations / 4096, 1, parts_at_most);
}

}  // namespace precast
