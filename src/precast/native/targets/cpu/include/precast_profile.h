// Step timers of profiled host code. Correct for calls from one thread at a time.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>

namespace precast {

// Nanoseconds; `started` and `last` are of the last call, on the monotonic clock.
struct step_time {
    int64_t calls, total, shortest, started, last;
};

// Adds its lifetime to a step's time.
class timed {
public:
    explicit timed(step_time& step) : step(step) { step.started = now(); }
    timed(const timed&) = delete;
    timed& operator=(const timed&) = delete;
    ~timed() {
        step.last = now() - step.started;
        step.shortest = step.calls && step.shortest < step.last ? step.shortest : step.last;
        step.total += step.last;
        ++step.calls;
    }

private:
    static int64_t now() {
        return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
    }
    step_time& step;
};

}  // namespace precast

// The times of an entry's steps, in order; null if there is no such entry.
extern "C" __attribute__((visibility("default"))) const precast::step_time* precast_step_times(size_t entry);
