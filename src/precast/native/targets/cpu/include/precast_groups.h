// Distributes the iterations of many loops to the threads of a parallel region.
#pragma once

#include <omp.h>

#include <cstdint>

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
        return place >= count ? count : (place > 0 ? place : 0) / 64 * 64;
    }

    share(int64_t total, int64_t thread, int64_t threads)
        : first(total * thread / threads), last(total * (thread + 1) / threads) {}

    int64_t first, last, position = 0;
};

// The number of parts of a reduction of this many iterations: independent of the threads, so that results are, too. A prime, so
// that the first parts of many reductions, too, are distributed evenly to threads.
constexpr int64_t parts_at_most = 61;
inline int64_t parts_of(int64_t iterations) {
    const int64_t parts = iterations / 4096;
    return parts < 1 ? 1 : parts > parts_at_most ? parts_at_most : parts;
}

// The parts' results, to be written.
template <class T>
class parts_of_many {
public:
    explicit parts_of_many(int64_t count) : parts(new T[count]) {}
    parts_of_many(const parts_of_many&) = delete;
    parts_of_many& operator=(const parts_of_many&) = delete;
    ~parts_of_many() { delete[] parts; }
    T& operator[](int64_t number) { return parts[number]; }

private:
    T* parts;
};

}  // namespace precast
